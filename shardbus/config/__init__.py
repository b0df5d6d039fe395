"""Settings: `settings` declares each once, `options` reads one value, `loading` merges file,
environment and command line, `validation` checks the settings against each other.
"""
