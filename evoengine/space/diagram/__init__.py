"""Sets of configs as multi-valued decision diagrams: construction, counting, sampling and nearest configs."""
