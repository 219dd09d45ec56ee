export function topicsPage(view) { return { close() {} }; }
