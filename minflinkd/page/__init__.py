"""The web page (E15): static files that the daemon serves as they are, without a build step.

`index.html` is its shell, `app/` what all pages share, `views/` a file for each page, `style/` the style sheets and
`vendor/` the libraries of others. `files.py` reads them, `vendored.py` brings the libraries from npm. What is served is
decided in `rest/page.py`.
"""
