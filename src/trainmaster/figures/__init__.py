"""Drawing. A file of this room is imported by its name, so that a sparkline needs no numpy; matplotlib and plotly are where they draw."""
