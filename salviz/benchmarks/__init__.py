"Measure the cost of each method's training step, and compare salviz with other libraries; see `salviz bench`."
