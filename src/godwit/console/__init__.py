"""The web console: a web server that is an ordinary client of a broker, for people with a browser.

A browser loads a page of plain HTML, CSS and JavaScript modules (static/), logs in, and opens a websocket. Through it
the page sends requests, each answered once, and receives events. Everything that a page shows or does goes through a
client of the public API with the name and the rights of the person: `BrokerLink`. The broker decides what that client
may do; the console has no rights of its own.
"""
