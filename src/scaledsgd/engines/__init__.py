"""Who runs the samples of a round: CPU threads, a GPU, a cluster."""
