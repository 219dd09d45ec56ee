export function clientsPage(view) { return { close() {} }; }
