package main

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// firstLine is the first line of the output of `lighter trace export`. docs/format.md describes the
// format. This program uses only the path in each line.
const firstLine = "lighter trace 1"

// readTraces returns the paths in files of traces, in the order of their first use, file by file.
func readTraces(files []string) ([]string, error) {
	var paths []string
	seen := map[string]bool{}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
			p, err := pathOf(line, i == 0)
			if err != nil {
				return nil, fmt.Errorf("%s, line %d: %w", name, i+1, err)
			}
			if p != "" && !seen[p] {
				seen[p] = true
				paths = append(paths, p)
			}
		}
	}
	return paths, nil
}

// pathOf returns the path in a line of a trace, or "".
func pathOf(line string, first bool) (string, error) {
	if first {
		if line != firstLine {
			return "", fmt.Errorf("not a file of traces: want %q", firstLine)
		}
		return "", nil
	}
	if strings.HasPrefix(line, "starts ") {
		return "", nil
	}
	fields := strings.Split(line, " ") // ms offset length path chunk…
	if len(fields) < 4 {
		return "", fmt.Errorf("%.100q has no path", line)
	}
	p, err := url.PathUnescape(fields[3])
	return clean(p), err
}

// clean returns a path without slashes at its ends, for comparisons.
func clean(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

// assign finds the uppermost layer of each path, and returns each layer's paths in order. It skips
// paths that are in no layer, because a trace may be of an older build.
func assign(ctx context.Context, store content.Store, manifest ocispec.Manifest,
	paths []string) (map[digest.Digest][]string, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	wanted := map[string]digest.Digest{}
	for _, p := range paths {
		wanted[p] = ""
	}
	for _, layer := range manifest.Layers { // upper layers last
		if err := eachFile(ctx, store, layer, func(name string) {
			if _, ok := wanted[name]; ok {
				wanted[name] = layer.Digest
			}
		}); err != nil {
			return nil, fmt.Errorf("layer %s: %w", layer.Digest, err)
		}
	}
	first := map[digest.Digest][]string{}
	for _, p := range paths {
		if layer := wanted[p]; layer != "" {
			first[layer] = append(first[layer], p)
		}
	}
	return first, nil
}

// eachFile calls fn for each entry of a layer except directories.
func eachFile(ctx context.Context, store content.Store, layer ocispec.Descriptor, fn func(name string)) (err error) {
	blob, err := store.ReaderAt(ctx, layer)
	if err != nil {
		return err
	}
	defer blob.Close()
	plain, err := compression.DecompressStream(content.NewReader(blob))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	entries := tar.NewReader(plain)
	for {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeDir {
			fn(clean(header.Name))
		}
	}
}
