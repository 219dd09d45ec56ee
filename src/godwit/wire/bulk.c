/* The compiled form of bulk.py, which documents the functions. Both forms return the same.

   Checksums are computed by instructions of the processor, for three packets at a time, because one such instruction
   has to wait for the one before. Where there are none, crc32c of the package of that name is called, as in bulk.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define HEAD_BYTES 9        /* of a packet without its number, and of a fragment without its offset */
#define NUMBER_AT 9
#define FRAME_AT 13
#define OFFSET_AT 22
#define BODY_AT 26
#define CHECKSUM_BYTES 4
#define OVERHEAD_BYTES (BODY_AT + CHECKSUM_BYTES)

static PyObject *library_crc32c;

/* -- numbers ------------------------------------------------------------------------------------------------------ */

static void
put_big(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

static void
put_little(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
    at[2] = (uint8_t)(value >> 16);
    at[3] = (uint8_t)(value >> 24);
}

/* -- checksums ---------------------------------------------------------------------------------------------------- */

#if defined(WITHOUT_INSTRUCTIONS) /* for a test */
#elif defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define WITH_CRC __attribute__((target("sse4.2")))
#define HAS_CRC() __builtin_cpu_supports("sse4.2")
#define CRC_8(crc, at) ((uint32_t)_mm_crc32_u64((crc), load_8(at)))
#define CRC_1(crc, at) _mm_crc32_u8((crc), *(at))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32) && !defined(__AARCH64EB__)
#include <arm_acle.h>
#define WITH_CRC
#define HAS_CRC() 1
#define CRC_8(crc, at) __crc32cd((crc), load_8(at))
#define CRC_1(crc, at) __crc32cb((crc), *(at))
#endif

#ifdef WITH_CRC

static int has_crc; /* whether the processor has the instructions */

static inline uint64_t
load_8(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

WITH_CRC static uint32_t
crc_of_one(const uint8_t *at, Py_ssize_t size)
{
    uint32_t crc = ~0u;
    for (; size >= 8; size -= 8, at += 8)
        crc = CRC_8(crc, at);
    for (; size; size--, at++)
        crc = CRC_1(crc, at);
    return ~crc;
}

WITH_CRC static void
crc_of_three(const uint8_t *at, Py_ssize_t stride, Py_ssize_t size, uint32_t *crcs)
{
    const uint8_t *b = at + stride, *c = b + stride;
    uint32_t x = ~0u, y = ~0u, z = ~0u;
    for (; size >= 8; size -= 8, at += 8, b += 8, c += 8) {
        x = CRC_8(x, at);
        y = CRC_8(y, b);
        z = CRC_8(z, c);
    }
    for (; size; size--, at++, b++, c++) {
        x = CRC_1(x, at);
        y = CRC_1(y, b);
        z = CRC_1(z, c);
    }
    crcs[0] = ~x;
    crcs[1] = ~y;
    crcs[2] = ~z;
}

#endif

static int
crc_of_library(const uint8_t *at, Py_ssize_t size, uint32_t *crc)
{
    PyObject *view = PyMemoryView_FromMemory((char *)at, size, PyBUF_READ);
    if (view == NULL)
        return -1;
    PyObject *value = PyObject_CallOneArg(library_crc32c, view);
    Py_DECREF(view);
    if (value == NULL)
        return -1;
    *crc = (uint32_t)PyLong_AsUnsignedLongMask(value);
    Py_DECREF(value);
    return PyErr_Occurred() ? -1 : 0;
}

/* Compute the checksums of `count` packets, `stride` bytes apart, each over its first `size` bytes. Return how many
   were computed: up to three of them, or -1 after an error. */
static int
next_checksums(const uint8_t *at, Py_ssize_t count, Py_ssize_t stride, Py_ssize_t size, uint32_t *crcs)
{
#ifdef WITH_CRC
    if (has_crc) {
        if (count >= 3) {
            crc_of_three(at, stride, size, crcs);
            return 3;
        }
        crcs[0] = crc_of_one(at, size);
        return 1;
    }
#endif
    return crc_of_library(at, size, crcs) < 0 ? -1 : 1;
}

/* -- arguments ---------------------------------------------------------------------------------------------------- */

static int
read_sizes(PyObject *const *from, int count, Py_ssize_t *sizes)
{
    for (int i = 0; i < count; i++) {
        sizes[i] = PyLong_AsSsize_t(from[i]);
        if (sizes[i] == -1 && PyErr_Occurred())
            return -1;
        if (sizes[i] < 0) {
            PyErr_SetString(PyExc_ValueError, "a size or an offset is negative");
            return -1;
        }
    }
    return 0;
}

static const uint8_t *
read_bytes(PyObject *from, Py_ssize_t size)
{
    if (!PyBytes_Check(from) || (size >= 0 && PyBytes_GET_SIZE(from) != size)) {
        PyErr_SetString(PyExc_TypeError, "an argument must be bytes, and a head must have 9 of them");
        return NULL;
    }
    return (const uint8_t *)PyBytes_AS_STRING(from);
}

static int
check_count(Py_ssize_t given, Py_ssize_t expected)
{
    if (given != expected)
        PyErr_Format(PyExc_TypeError, "%zd arguments were given instead of %zd", given, expected);
    return given == expected;
}

/* -- runs of packets ---------------------------------------------------------------------------------------------- */

static PyObject *
encode_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t sizes[3];
    if (!check_count(nargs, 8) || read_sizes(args + 1, 3, sizes) < 0)
        return NULL;
    const Py_ssize_t start = sizes[0], stop = sizes[1], body_bytes = sizes[2];
    const uint8_t *body = read_bytes(args[0], -1), *packet_head = read_bytes(args[4], HEAD_BYTES);
    const uint8_t *frame_head = read_bytes(args[6], HEAD_BYTES), *last_frame_head = read_bytes(args[7], HEAD_BYTES);
    if (body == NULL || packet_head == NULL || frame_head == NULL || last_frame_head == NULL)
        return NULL;
    const uint64_t number = PyLong_AsUnsignedLongLongMask(args[5]);
    if (PyErr_Occurred())
        return NULL;
    if (start >= stop || stop > PyBytes_GET_SIZE(args[0]) || body_bytes == 0 || body_bytes > PY_SSIZE_T_MAX / 2) {
        PyErr_SetString(PyExc_ValueError, "the run is empty, or goes beyond the record");
        return NULL;
    }
    const Py_ssize_t count = (stop - start - 1) / body_bytes + 1, stride = body_bytes + OVERHEAD_BYTES;
    if (count > (PY_SSIZE_T_MAX - (stop - start)) / OVERHEAD_BYTES)
        return PyErr_NoMemory();
    PyObject *train = PyBytes_FromStringAndSize(NULL, stop - start + count * OVERHEAD_BYTES);
    if (train == NULL)
        return NULL;
    uint8_t *const packets = (uint8_t *)PyBytes_AS_STRING(train);
    Py_ssize_t left = stop - start;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint8_t *packet = packets + i * stride;
        const Py_ssize_t offset = start + i * body_bytes;
        memcpy(packet, packet_head, HEAD_BYTES);
        put_big(packet + NUMBER_AT, (uint32_t)(number + (uint64_t)i));
        memcpy(packet + FRAME_AT, i == count - 1 ? last_frame_head : frame_head, HEAD_BYTES);
        put_big(packet + OFFSET_AT, (uint32_t)offset);
        memcpy(packet + BODY_AT, body + offset, (size_t)(left < body_bytes ? left : body_bytes));
        left -= body_bytes;
    }
    const Py_ssize_t last_bytes = left + body_bytes; /* of the last body */
    const Py_ssize_t full = last_bytes == body_bytes ? count : count - 1;
    for (Py_ssize_t i = 0; i < count;) {
        uint32_t crcs[3];
        const Py_ssize_t size = BODY_AT + (i < full ? body_bytes : last_bytes);
        const int computed = next_checksums(packets + i * stride, i < full ? full - i : 1, stride, size, crcs);
        if (computed < 0) {
            Py_DECREF(train);
            return NULL;
        }
        for (int j = 0; j < computed; j++)
            put_little(packets + (i + j) * stride + size, crcs[j]);
        i += computed;
    }
    return train;
}

static PyObject *
decode_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t sizes[3], offset;
    if (!check_count(nargs, 9) || read_sizes(args + 1, 3, sizes) < 0 || read_sizes(args + 7, 1, &offset) < 0)
        return NULL;
    const Py_ssize_t at = sizes[0], stride = sizes[1], limit = sizes[2];
    const uint8_t *data = read_bytes(args[0], -1), *packet_head = read_bytes(args[4], HEAD_BYTES);
    const uint8_t *frame_head = read_bytes(args[6], HEAD_BYTES);
    if (data == NULL || packet_head == NULL || frame_head == NULL)
        return NULL;
    const uint64_t number = PyLong_AsUnsignedLongLongMask(args[5]);
    const int has_checksums = PyObject_IsTrue(args[8]);
    if (has_checksums < 0 || PyErr_Occurred())
        return NULL;
    const Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    if (stride <= OVERHEAD_BYTES || at > size || limit > (size - at) / stride) {
        PyErr_SetString(PyExc_ValueError, "the packets are empty, or go beyond the train");
        return NULL;
    }
    const Py_ssize_t body_bytes = stride - OVERHEAD_BYTES;
    const uint8_t *const packets = data + at;
    uint8_t expected[BODY_AT];
    memcpy(expected, packet_head, HEAD_BYTES);
    memcpy(expected + FRAME_AT, frame_head, HEAD_BYTES);
    Py_ssize_t count = 0;
    for (; count < limit; count++) {
        put_big(expected + NUMBER_AT, (uint32_t)(number + (uint64_t)count));
        put_big(expected + OFFSET_AT, (uint32_t)((uint64_t)offset + (uint64_t)(count * body_bytes)));
        if (memcmp(packets + count * stride, expected, BODY_AT) != 0)
            break;
    }
    for (Py_ssize_t i = 0; has_checksums && i < count;) {
        uint32_t crcs[3];
        const int computed = next_checksums(packets + i * stride, count - i, stride, stride - CHECKSUM_BYTES, crcs);
        if (computed < 0)
            return NULL;
        for (int j = 0; j < computed; j++, i++) {
            uint8_t checksum[CHECKSUM_BYTES];
            put_little(checksum, crcs[j]);
            if (memcmp(packets + (i + 1) * stride - CHECKSUM_BYTES, checksum, CHECKSUM_BYTES) != 0) {
                count = i; /* ends both loops */
                break;
            }
        }
    }
    PyObject *bodies = PyBytes_FromStringAndSize(NULL, count * body_bytes);
    if (bodies == NULL)
        return NULL;
    uint8_t *to = (uint8_t *)PyBytes_AS_STRING(bodies);
    for (Py_ssize_t i = 0; i < count; i++)
        memcpy(to + i * body_bytes, packets + i * stride + BODY_AT, (size_t)body_bytes);
    return bodies;
}

/* -- the module --------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"encode_run", (PyCFunction)(void (*)(void))encode_run, METH_FASTCALL, "Return the packets of a part of a record."},
    {"decode_run", (PyCFunction)(void (*)(void))decode_run, METH_FASTCALL, "Return the joined bodies of packets."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "godwit.wire.bulk", NULL, -1, methods,
                                        NULL, NULL, NULL, NULL};

PyMODINIT_FUNC
PyInit_bulk(void)
{
#ifdef WITH_CRC
    has_crc = HAS_CRC() != 0;
#endif
    PyObject *library = PyImport_ImportModule("crc32c");
    if (library == NULL)
        return NULL;
    library_crc32c = PyObject_GetAttrString(library, "crc32c");
    Py_DECREF(library);
    if (library_crc32c == NULL)
        return NULL;
    return PyModule_Create(&definition);
}
