export function pipelinePage(view) { return { close() {} }; }
