// Sets the theme before anything is painted. A classic script, because modules run later.
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // no storage: the system's theme
}
