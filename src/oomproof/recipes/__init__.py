"""ONE BUDGET, EACH PROGRAM'S OWN KNOB: recipes, and configuration files filled in with the budget.

`load.load` finds a recipe (one TOML file), `start.Starts` makes each attempt's command line,
environment and files from it. Everything here is imported only where a start asks for it.
"""
