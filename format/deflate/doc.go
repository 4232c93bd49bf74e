// Package deflate reads gzip streams, and finds the places at which reading can begin again.
//
// A gzip stream is a sequence of members (RFC 1952), each a sequence of deflate blocks (RFC 1951).
// A block refers to the 32 KiB of plain bytes before it, and it may begin at any bit of a byte. So
// a Checkpoint at the beginning of a block has three parts: the bit offset in the stream, the
// offset of the plain bytes, and the window, which is the plain bytes before it. Resume reads on
// from a checkpoint. Neither compress/flate nor its replacements show where blocks begin.
//
// Offsets and bits count as in zran.c, an example of zlib, and so as in SOCI's zinfo.
//
// The package promises:
//   - The plain bytes are those of compress/gzip. Streams that compress/gzip refuses are refused.
//     Header fields that RFC 1952 reserves are refused, too.
//   - The checksum and the length of each member are verified, except for the member in which
//     Resume begins.
//   - A Reader needs about 200 KiB of memory, whatever the stream has in it. It decodes at most
//     64 KiB ahead of its caller.
//
// It trusts neither stream nor checkpoint: both lead to wrong bytes or an error at worst. A resumed
// Reader cannot detect a wrong window or a wrong offset. The bytes that it returns have to be
// verified, or the compressed bytes and the checkpoint have to.
package deflate
