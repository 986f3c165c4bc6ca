"""Two runs side by side, or the reason why they cannot be.

`honesty` finds what makes a comparison of two reports dishonest, `money` turns time into dollars
and a break-even, `table` prints, `plot` draws, `paper` re-derives the published figures that this
project starts from. All but `plot` need no numeric library.
"""
