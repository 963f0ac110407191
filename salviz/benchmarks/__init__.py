"Benchmarks: the cost of a training step of each method, and comparisons with other libraries; see `salviz bench`."
