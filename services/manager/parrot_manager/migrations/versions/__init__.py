"""The steps, oldest first.

From 0005 on each says in `works_with` the oldest code that works with the schema it makes, by the newest
step that code knows. Steps run before the code that needs them, beside managers of the release before: so
`works_with` is at most that release's newest step, and what a step takes away was not used any more by
then. What is added to a table that is there has a default, or may be null.
"""
