"""One small module per family of log formats. Each turns a source into rows under canonical names."""
