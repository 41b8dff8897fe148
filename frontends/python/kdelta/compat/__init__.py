"""The calls of other libraries, answered by kdelta. What is not supported is refused by the name of its argument."""
