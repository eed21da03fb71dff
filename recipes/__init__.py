"""Settings that ship with the project: training recipes, models and templates. Data only, no code."""
