"""The report as one HTML page that loads nothing: verdicts first, then pictures, then all that they rest on.

1. `html`      the page as a whole: `render_page` and `write_page`
2. `parts`     what a page is made of: cells with their exact value, tables, figures, sections
3. `figures`   the sections with pictures; `charts` turns findings into Vega-Lite specifications, `svg` draws them
4. `boots`     the timeline; `arms` each arm in full, `described` what only describes, `run` rule and environment
5. `script`    Vega once for all charts, and what draws them; a static page has none
"""
