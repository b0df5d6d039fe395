"""Where shards go: `strategies` and `least_load` plan, `selection` reads the settings, `checked`
guards a strategy of the application, `forecast` shows the moves that would follow.
"""
