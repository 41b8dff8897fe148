// Stands for PyTorch's library of the same name while _torch_ops is linked, and is never loaded or installed.
