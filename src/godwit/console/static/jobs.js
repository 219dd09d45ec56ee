export function jobsPage(view) { return { close() {} }; }
