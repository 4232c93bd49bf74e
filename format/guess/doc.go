// Package guess predicts what the starts of an image read, from the image alone: from its config,
// its ELF files, its scripts and the modules that these import. A new image gets its first startup
// packs from this guess, before a node has reported a start.
//
// The package is pure: the same input gives the same output. Images are not trusted: one that is
// made to be slow or odd costs a bounded number of lookups, chunks and bytes.
package guess
