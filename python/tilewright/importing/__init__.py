"""What importers share: programs that are found out on the way, whatever framework they come from.

| module | what it holds |
|---|---|
| `axes`, `graph` | axes that are found to be the same, and operations of the language over them |
| `text` | names, and the text in the language |

Nothing here imports a framework.
"""
