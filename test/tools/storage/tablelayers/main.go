// Command tablelayers writes layers with tables of contents, with the libraries of
// stargz-snapshotter and of containers/storage. They are examples for format/stargz.
//
//	tablelayers DIR PRIORITIZED... <TAR
//
// For each way of writing it writes two files to DIR: NAME.blob, the layer, and NAME.json, the
// annotations of its descriptor. PRIORITIZED are the files that a start needs, in order.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/containerd/stargz-snapshotter/estargz/externaltoc"
	"github.com/containerd/stargz-snapshotter/estargz/zstdchunked"
	"github.com/klauspost/compress/zstd"
	"go.podman.io/storage/pkg/chunked/compressor"
)

// chunkSize makes several chunks of files that are small enough for examples.
const chunkSize = 50_000

func main() {
	tar, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = write(os.Args[1], tar, os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tablelayers:", err)
		os.Exit(1)
	}
}

// layer is a layer, or the table of one.
type layer struct {
	blob        []byte
	annotations map[string]string
}

func write(dir string, tar []byte, prioritized []string) error {
	size, first := estargz.WithChunkSize(chunkSize), estargz.WithPrioritizedFiles(prioritized)
	shared := estargz.WithMinChunkSize(20_000) // stored bytes of a member, if its files are small
	err := errors.Join(writeExternal(dir, tar), writeContainers(dir, tar))
	for name, options := range map[string][]estargz.Option{
		"estargz":             {size},
		"estargz-prioritized": {size, first},
		"estargz-shared":      {size, first, shared},
	} {
		err = errors.Join(err, writeStargz(dir, name, tar, map[string]string{}, options...))
	}
	for name, options := range map[string][]estargz.Option{
		"stargz-zstd":        {size, first},
		"stargz-zstd-shared": {size, shared},
	} {
		annotations := map[string]string{} // set by the compressor
		z := &struct {
			*zstdchunked.Compressor
			*zstdchunked.Decompressor
		}{&zstdchunked.Compressor{CompressionLevel: zstd.SpeedBestCompression, Metadata: annotations}, nil}
		options = append(options, estargz.WithCompression(z))
		err = errors.Join(err, writeStargz(dir, name, tar, annotations, options...))
	}
	return err
}

// writeStargz writes a layer with more annotations than those given.
func writeStargz(dir, name string, tar []byte, annotations map[string]string, options ...estargz.Option) error {
	built, err := estargz.Build(io.NewSectionReader(bytes.NewReader(tar), 0, int64(len(tar))), options...)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer built.Close()
	blob, err := io.ReadAll(built)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	annotations[estargz.TOCJSONDigestAnnotation] = built.TOCDigest().String()
	return layer{blob, annotations}.save(dir, name)
}

// writeExternal writes a layer, and its table, which is the layer of another image.
func writeExternal(dir string, tar []byte) error {
	c := externaltoc.NewGzipCompressorWithLevel(9)
	err := writeStargz(dir, "external", tar, map[string]string{}, estargz.WithChunkSize(chunkSize),
		estargz.WithCompression(&struct {
			*externaltoc.GzipCompressor
			*externaltoc.GzipDecompressor
		}{c, nil}))
	if err != nil {
		return err
	}
	var table bytes.Buffer
	if _, err := c.WriteTOCTo(&table); err != nil {
		return fmt.Errorf("external: %w", err)
	}
	return layer{blob: table.Bytes()}.save(dir, "external-table")
}

func writeContainers(dir string, tar []byte) error {
	var blob bytes.Buffer
	l := layer{annotations: map[string]string{}}
	w, err := compressor.ZstdCompressor(&blob, l.annotations, nil)
	if err == nil {
		_, err = w.Write(tar)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return fmt.Errorf("containers: %w", err)
	}
	l.blob = blob.Bytes()
	return l.save(dir, "containers")
}

func (l layer) save(dir, name string) error {
	text, err := json.MarshalIndent(l.annotations, "", "\t")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, name+".blob"), l.blob, 0o644),
		os.WriteFile(filepath.Join(dir, name+".json"), append(text, '\n'), 0o644))
}
