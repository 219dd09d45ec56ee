/* The load of `godwit bench mqtt`: clients of MQTT 3.1.1 that cost little, so that the broker is measured.
 *
 *   mqtt_load PORT pair QOS WINDOW TOPICS SECONDS
 *       One publisher and one subscriber. The publisher uses TOPICS topics in turn and has at most WINDOW messages in
 *       flight: with QoS 0 on their way to the subscriber, with QoS 1 without a PUBACK.
 *   mqtt_load PORT many SENDERS SECONDS
 *       SENDERS publishers, each with one message of QoS 1 in flight and a topic of its own, and one subscriber.
 *
 * Prints the messages that were published and the seconds until the last of them had arrived: "MESSAGES SECONDS".
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PAYLOAD = 100, BUFFER = 1 << 18, STUCK_MS = 10000, EVENTS = 1024 };

struct client {
    int fd;
    unsigned char *in, *out;
    size_t in_size, in_end, out_size, out_at, out_end;
    int watches_output;
};

static int epoll_fd;
static long published, acknowledged, received;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "the broker closed the connection");
    exit(1);
}

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void put(struct client *client, const void *data, size_t size) {
    if (client->out_end + size > client->out_size) fail("the output buffer is too small");
    memcpy(client->out + client->out_end, data, size);
    client->out_end += size;
}

/* Append a packet: first byte, length, and the parts of its body. */
static void put_head(struct client *client, int first, size_t size) {
    unsigned char head[5] = {first};
    int end = 1;
    do {
        head[end++] = (size & 127) | (size > 127 ? 128 : 0);
        size >>= 7;
    } while (size);
    put(client, head, end);
}

static void put_text(struct client *client, const char *text) {
    size_t size = strlen(text);
    unsigned char length[2] = {size >> 8, size};
    put(client, length, 2);
    put(client, text, size);
}

static void put_number(struct client *client, unsigned number) {
    unsigned char bytes[2] = {number >> 8, number};
    put(client, bytes, 2);
}

static void put_publish(struct client *client, const char *topic, int qos, unsigned packet_id) {
    static const char payload[PAYLOAD];
    put_head(client, 0x30 | qos << 1, 2 + strlen(topic) + (qos ? 2 : 0) + PAYLOAD);
    put_text(client, topic);
    if (qos) put_number(client, packet_id);
    put(client, payload, PAYLOAD);
    published++;
}

/* Write as much as the socket accepts, and watch for more room only if something is left. */
static void flush(struct client *client) {
    while (client->out_at < client->out_end) {
        ssize_t size = write(client->fd, client->out + client->out_at, client->out_end - client->out_at);
        if (size < 0 && errno == EAGAIN) break;
        if (size < 0) fail("write");
        client->out_at += size;
    }
    int is_left = client->out_at < client->out_end;
    if (!is_left) client->out_at = client->out_end = 0;
    if (is_left != client->watches_output) {
        client->watches_output = is_left;
        struct epoll_event event = {.events = EPOLLIN | (is_left ? EPOLLOUT : 0), .data.ptr = client};
        epoll_ctl(epoll_fd, EPOLL_CTL_MOD, client->fd, &event);
    }
}

/* Handle all complete packets. Return how many acknowledgements they contain. */
static long handle_input(struct client *client) {
    ssize_t size = read(client->fd, client->in + client->in_end, client->in_size - client->in_end);
    if (size < 0 && errno == EAGAIN) return 0;
    errno = size ? errno : 0;
    if (size <= 0) fail("read");
    client->in_end += size;
    unsigned char *in = client->in;
    size_t at = 0;
    long acks = 0;
    while (client->in_end - at >= 2) {
        size_t body = at + 1, length = 0;
        int shift = 0;
        do {
            if (body >= client->in_end) goto incomplete;
            length |= (size_t)(in[body] & 127) << shift;
            shift += 7;
        } while (in[body++] & 128);
        if (body + length > client->in_end) break;
        if (in[at] >> 4 == 3) {
            received++;
            if (in[at] & 6) {
                size_t id = body + 2 + (in[body] << 8 | in[body + 1]);
                unsigned char puback[4] = {0x40, 2, in[id], in[id + 1]};
                put(client, puback, 4);
            }
        } else if (in[at] >> 4 == 4) {
            acks++;
        }
        at = body + length;
    }
incomplete:
    memmove(in, in + at, client->in_end - at);
    client->in_end -= at;
    acknowledged += acks;
    return acks;
}

/* Connect, log in, and subscribe to everything if `qos` is not -1. */
static void open_client(struct client *client, int port, const char *name, int qos, size_t buffer) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    *client = (struct client){.fd = socket(AF_INET, SOCK_STREAM, 0), .in_size = buffer, .out_size = 2 * buffer};
    client->in = malloc(client->in_size);
    client->out = malloc(client->out_size);
    int one = 1;
    if (connect(client->fd, (void *)&address, sizeof address)) fail("connect");
    setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    put_head(client, 0x10, 12 + strlen(name));
    put_text(client, "MQTT");
    put(client, "\4\2\0\0", 4);
    put_text(client, name);
    if (write(client->fd, client->out, client->out_end) != (ssize_t)client->out_end) fail("write");
    unsigned char reply[5];
    errno = 0;
    if (recv(client->fd, reply, 4, MSG_WAITALL) != 4 || reply[3]) fail("CONNACK");
    client->out_end = 0;
    if (qos >= 0) {
        put_head(client, 0x82, 12);
        put_number(client, 1);
        put_text(client, "bench/#");
        put(client, qos ? "\1" : "\0", 1);
        if (write(client->fd, client->out, client->out_end) != (ssize_t)client->out_end) fail("write");
        if (recv(client->fd, reply, 5, MSG_WAITALL) != 5 || reply[4] != qos) fail("SUBACK");
        client->out_end = 0;
    }
    fcntl(client->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, client->fd, &event);
}

static int wait_for(struct epoll_event *events) {
    int count = epoll_wait(epoll_fd, events, EVENTS, STUCK_MS);
    if (count > 0) return count;
    fprintf(stderr, "stuck: %ld published, %ld acknowledged, %ld received\n", published, acknowledged, received);
    exit(1);
}

static void run_pair(int port, int qos, long window, int topics, double seconds) {
    struct client publisher, subscriber;
    struct epoll_event events[EVENTS];
    char topic[64];
    open_client(&subscriber, port, "bench-subscriber", qos, BUFFER);
    open_client(&publisher, port, "bench-publisher", -1, BUFFER);
    double began_s = now_s();
    for (;;) {
        int is_sending = now_s() - began_s < seconds;
        while (is_sending && publisher.out_end < BUFFER / 4 &&
               published - (qos ? acknowledged : received) < window) {
            snprintf(topic, sizeof topic, "bench/room%ld/temperature", published % topics);
            put_publish(&publisher, topic, qos, published % 65535 + 1);
        }
        flush(&publisher);
        if (!is_sending && received >= published && (!qos || acknowledged >= published)) break;
        int count = wait_for(events);
        for (int index = 0; index < count; index++) {
            struct client *client = events[index].data.ptr;
            if (events[index].events & ~EPOLLOUT) handle_input(client);
            flush(client);
        }
    }
    printf("%ld %f\n", published, now_s() - began_s);
}

static void run_many(int port, int senders, double seconds) {
    struct rlimit limit = {senders + 100, senders + 100};
    struct client *clients = calloc(senders, sizeof *clients), subscriber;
    struct epoll_event events[EVENTS];
    char text[32];
    setrlimit(RLIMIT_NOFILE, &limit);
    open_client(&subscriber, port, "bench-subscriber", 1, BUFFER);
    for (int index = 0; index < senders; index++) {
        snprintf(text, sizeof text, "bench-%d", index);
        open_client(&clients[index], port, text, -1, 512);
    }
    double began_s = now_s();
    for (int index = 0; index < senders; index++) {
        snprintf(text, sizeof text, "bench/%d", index);
        put_publish(&clients[index], text, 1, 1);
        flush(&clients[index]);
    }
    while (acknowledged < published || received < published) {
        int is_sending = now_s() - began_s < seconds;
        int count = wait_for(events);
        for (int index = 0; index < count; index++) {
            struct client *client = events[index].data.ptr;
            if (events[index].events & ~EPOLLOUT && handle_input(client) && is_sending) {
                snprintf(text, sizeof text, "bench/%ld", (long)(client - clients));
                put_publish(client, text, 1, 1);
            }
            flush(client);
        }
    }
    printf("%ld %f\n", published, now_s() - began_s);
}

int main(int count, char **words) {
    epoll_fd = epoll_create1(0);
    if (count == 7 && !strcmp(words[2], "pair"))
        run_pair(atoi(words[1]), atoi(words[3]), atol(words[4]), atoi(words[5]), atof(words[6]));
    else if (count == 5 && !strcmp(words[2], "many"))
        run_many(atoi(words[1]), atoi(words[3]), atof(words[4]));
    else
        fail("usage");
    return 0;
}
