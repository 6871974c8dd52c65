"""Files of a model by recipes and by other programs, each judged by its own reader."""
