"""Other people's attention kernels, one small module per library, behind one protocol."""
