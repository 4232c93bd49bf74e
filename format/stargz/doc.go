// Package stargz reads and writes layers that can be entered in the middle because they have a
// table of contents: eStargz, and zstd:chunked as stargz-snapshotter writes it and as
// containers/storage does (Podman, Buildah, Skopeo). All three tables are JSON of one form, which
// began as stargz. A table lists the entries of the layer's tar and, for each file, the chunks that
// it consists of: where each begins in the blob, its length and its SHA-256.
//
// Locate and LocateByFooter say where a layer's table lies. Decode reads it. The result is a Layer:
// the entries, as a tree.LayerSource, and the units of the blob, each of which decompresses by
// itself. Layer.Map makes a layer table of them, in which neighbouring units are joined.
//
// What a reader may believe, step by step:
//
//	manifest → annotation of the layer → SHA-256 of the table → SHA-256 of each chunk
//
// Decode checks the table against every digest that Table has. A unit of the layer table
// returns only chunks whose bytes match their digests. Nothing has the digest of a table if the
// layer has no annotations: see Table.Verifiable.
//
// Hazard: nothing binds a table to the layer's diffID. A container runtime shares snapshots by the
// diffIDs of an image's config, and the table may list other files than the tar of that diffID.
// So a caller mounts a layer by its table under a chainID only if the repository is trusted for it,
// or if the two were compared.
//
// What the tables do not have, compared with the tar:
//   - stargz-snapshotter rounds times to seconds.
//   - JSON has no bytes that are not UTF-8. The writers replace such bytes of a name by U+FFFD, so
//     a table with U+FFFD in a name is refused.
//   - Sparse files: stargz-snapshotter refuses them. containers/storage writes their headers and
//     their expanded contents, so the tar is wrong, and the table has the file as it was.
//
// Entries come in the order of the table, which is the tar's. So duplicates, hard links, whiteouts
// and missing parents have the meaning that they have in the tar: see tree.Apply. To
// stargz-snapshotter they mean the same, except where containerd refuses the tar: it accepts a hard
// link before its target.
//
// Write makes such a layer of a tar.
//
// Everything is bounded, as tables are untrusted until their end: see the constants. A table that
// contradicts itself is refused as a whole, and the layer has to be unpacked from its tar.
// docs/decisions/tables.md has the reasons and the measurements.
package stargz
