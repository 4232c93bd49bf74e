// Command partialpull fetches the files of a zstd:chunked layer as Podman does if partial pulls are
// enabled, with the library of containers/storage. It checks the tar-split against the table.
//
//	partialpull BLOB ANNOTATIONS DIR
//
// ANNOTATIONS is a file with the annotations of the layer's descriptor, in JSON. The storage is made
// below DIR, which needs root. The command prints the diffID that the library has computed from the
// tar-split and the files.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"go.podman.io/storage"
	"go.podman.io/storage/pkg/chunked"
	"go.podman.io/storage/pkg/reexec"
)

func main() {
	if reexec.Init() { // the library runs this program again
		return
	}
	if err := pull(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "partialpull:", err)
		os.Exit(1)
	}
}

func pull(path, annotated, dir string) error {
	text, err := os.ReadFile(annotated)
	if err != nil {
		return err
	}
	var annotations map[string]string
	if err := json.Unmarshal(text, &annotations); err != nil {
		return err
	}
	blob, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	store, err := storage.GetStore(storage.StoreOptions{
		GraphRoot: filepath.Join(dir, "root"), RunRoot: filepath.Join(dir, "run"), GraphDriverName: "overlay",
		PullOptions: map[string]string{"enable_partial_images": "true"},
	})
	if err != nil {
		return err
	}
	differ, err := chunked.NewDiffer(context.Background(), store, digest.FromBytes(blob), int64(len(blob)), annotations,
		ranges(path))
	if err != nil {
		return err
	}
	defer differ.Close()
	out, err := store.PrepareStagedLayer(nil, differ)
	if err != nil {
		return err
	}
	fmt.Println(out.UncompressedDigest)
	_, err = store.Shutdown(true)
	return err
}

// ranges is a file whose ranges are read.
type ranges string

func (path ranges) GetBlobAt(chunks []chunked.ImageSourceChunk) (chan io.ReadCloser, chan error, error) {
	streams, errs := make(chan io.ReadCloser), make(chan error)
	go func() {
		defer close(streams)
		defer close(errs)
		for _, c := range chunks {
			f, err := os.Open(string(path))
			if err != nil {
				errs <- err
				return
			}
			streams <- &part{io.NewSectionReader(f, int64(c.Offset), int64(c.Length)), f}
		}
	}()
	return streams, errs, nil
}

type part struct {
	io.Reader
	io.Closer
}
