// Package soci reads and writes the formats of SOCI (github.com/awslabs/soci-snapshotter, 0.15), an
// index beside unchanged images:
//
//   - A zTOC indexes one layer: its tar entries, and spans, which are parts of the layer that can
//     be decompressed by themselves (Table, Span; Make writes one). It is a FlatBuffer of the
//     schema ztoc/fbs/ztoc.fbs, version 0.9.
//   - The zinfo is the part of a zTOC that says how spans are decompressed. For gzip it is SOCI's
//     own format (ztoc/compression/gzip_zinfo.c, versions 1 and 2). For plain tars it is another
//     FlatBuffer (ztoc/compression/fbs/zinfo.fbs, version 2).
//   - An Index is the OCI manifest that names an image's zTOCs (soci/soci_index.go).
//   - A list of spans to prefetch (soci/prefetch.go).
//
// Decoders bound memory and time by the size of their input, and by the given limits. They check
// all that a zTOC says about itself: sizes, order, and that the spans cover the archive.
//
// What is authenticated: the index's digest covers the zTOCs' digests, and a zTOC has a SHA-256 of
// each span's compressed bytes and the window in which they are decompressed. The plain bytes have
// no digest, and nothing binds a zTOC to the layer's digest or its diffID. A zTOC can list other
// files than the layer has, and its windows can change the bytes of files. So the plain bytes are
// as trustworthy as the author of the zTOC. Also, the bytes of the gzip header before the first
// span have no digest, but nothing reads them.
//
// Refused, though SOCI accepts them: entries that are not in the order of the tar, and PAX sparse
// files. SOCI records a sparse file's expanded size but not where its pieces are, and so serves
// wrong bytes.
//
// FlatBuffers are read by a small reader of our own (buffer), as the library's accessors panic on
// hostile offsets, and let one string be read millions of times. They are written by the library,
// in SOCI's order, so that Make gives SOCI's bytes.
package soci
