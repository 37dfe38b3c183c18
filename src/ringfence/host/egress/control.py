"""The socket between the server and one worker: packets of JSON, and the descriptors that go with them.

A SOCK_SEQPACKET pair, made by the spawner. A packet is one JSON object `{"t": kind, ...}` of at most MAX_PACKET bytes; what is
larger (the configuration) comes in parts. Descriptors travel to the worker only. What the worker says is hostile: it reads what a
box sends. The server takes of it only what this user's own configuration names, and never a length, a user or a box.

server -> worker
    configure {seq, part, parts, text}      text: a part of Configuration as JSON; the last part puts it in force, all at once
    names {items}                           items [[name, address]]: synthetic, as the worker before had them
    listen {kind, port, invocation} + fd    kind proxy | transparent | dns_udp | dns_tcp; invocation "" : unattributed
    unlisten {port}                         its listener and the connections that came by it are closed
    tickets {invocation, items, ended}      items [{digest, credential, binding, more, expires, uses}]; replaces those it had.
                                            more: further bindings of the same credential that the stand-in is for; uses: that are
                                            left; ended: the command has, and no value that it was given is kept
    secret {n, value, version, keep}        answer; value: base64; keep: seconds that an access token may be kept, or null
    secret {n, error}                       answer: there is none
    answer {n, ok, why, row}                to an intent (row: its id) or a hold
    model {n} + fd | {n, error, configured} answer: a stream socket that speaks HTTP/1.1 to the gateway
    revoke {credential, n}                  forget its value, end what uses it; answered by `done`
    rest {}                                 to `idle`: take nobody any more and say `rested`, unless something has begun since
    end {}                                  finish: close listeners, give requests 2 s, exit 0

worker -> server
    ready {version}
    done {seq | n}                          a configuration is in force; a revocation is
    refused {seq, why}                      a configuration is not: the one before stays
    secret {n, credential, binding, invocation, host, method, path, refused?}
                                            refused: version of an access token that was answered with 401: another is wanted
    intent {n, binding, credential, invocation, host, port, method, path}       before the first byte goes out
    outcome {row, status, error, up, down}  status 0: there was none; error "": it was answered
    hold {n, invocation, rule, query}       rule: what would be merged, as JSON; query: names of the request's parameters
    model {n, invocation, digest}
    traffic {items, dropped}                items [{host, port, verdict, reason, invocation, method, requests, up, down}]
    idle {}                                 there has been nothing to do for Bounds.idle_ends; again after as long
    rested {names}                          nobody is taken any more, all is told; names as in `names`. The server closes the socket
    ending {why}                            its last word, constant text: a packet that may not be, a fault of its own
    finding {kind, invocation, details}     placeholder_foreign, placeholder_expired, secret_reflected, ... (hearing.KINDS)

What a packet of the worker's has besides these fields ends it.
"""

from __future__ import annotations

# A value of storing.MAX_VALUE (64 KiB) has 87,384 characters as base64. Linux takes packets up to the socket's send buffer,
# 208 KiB by default (net.core.wmem_default).
MAX_PACKET = 128 * 1024
PART = 40 * 1024  # characters of a configuration in one packet: escaped in JSON at most twice as many bytes
VERSION = 1
