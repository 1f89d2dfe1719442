"""The mathematics of Gaussian processes: knows arrays and kernels, no clients and no messages."""
