"""What importers share: programs that are found out on the way, whatever framework they come from.

| module | what it holds |
|---|---|
| `axes`, `graph` | axes that are found to be the same, and operations of the language over them |
| `elements`, `places`, `products`, `reductions`, `windows` | what rules are made of, by theme |
| `walk` | what a walk over operations needs, whichever they are |
| `text` | names, and the text in the language |
| `check` | the program against what it came from, both in f64 |

Nothing here imports a framework.
"""
