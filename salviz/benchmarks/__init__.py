"Measure the cost of a training step of each method, and compare it with other libraries; see `salviz bench`."
