package imagestore

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/format/chunk"
)

// blob is a layer as the hub's registry has it.
type blob struct {
	manifest string // digest of an image's manifest that has it
	digest   string
	size     int64
}

// blobs returns the diffID of a layer, and its blobs: those of images that the hubs have come
// first.
func (l *list) blobs(dir, id string) (diffID digest.Digest, all []blob, err error) {
	parents := map[string]string{}
	for _, y := range l.Layers {
		parents[y.ID] = y.Parent
		if y.ID == id {
			diffID = digest.Digest(y.DiffID)
		}
	}
	var damaged error // another image may have the layer, too
	for _, gone := range []bool{false, true} {
		for n := range l.Images {
			k := &l.Images[n]
			below, is := depth(parents, k.Layer, id)
			if k.Gone != gone || !is {
				continue
			}
			found, err := k.blobs(dir, below)
			if err != nil {
				damaged = err
			}
			if all = append(all, found...); len(all) >= maxBlobs {
				return diffID, all, nil
			}
		}
	}
	if len(all) == 0 && damaged != nil {
		return "", nil, damaged
	}
	if len(all) == 0 {
		return "", nil, fmt.Errorf("no image that the hubs have, or that was used here, has layer %s: %w", id,
			chunk.ErrNotFound)
	}
	return diffID, all, nil
}

// depth returns how many layers are below the layer with this ID in the chain that ends in top.
func depth(parents map[string]string, top, id string) (below int, is bool) {
	for ; top != ""; top = parents[top] {
		if is {
			below++
		}
		is = is || top == id
	}
	return below, is
}

// blobs returns the blob of the nth layer in each manifest of an image.
func (k *known) blobs(dir string, n int) (all []blob, err error) {
	for _, key := range k.BigDataNames {
		name, ok := strings.CutPrefix(key, manifestPrefix)
		if !ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join(imageDir(dir, k.ID), fileOf(key)))
		if err != nil {
			return nil, err
		}
		var m v1.Manifest
		if err := json.Unmarshal(text, &m); err != nil {
			return nil, fmt.Errorf("parse manifest %s: %w", name, err)
		}
		if n >= len(m.Layers) {
			return nil, fmt.Errorf("manifest %s has %d layers, and its image more", name, len(m.Layers))
		}
		all = append(all, blob{name, m.Layers[n].Digest.String(), m.Layers[n].Size})
	}
	return all, nil
}

// pipeSink passes a blob to a pipe. It implements layerblob.Sink. The reader of the pipe verifies
// the blob: what was passed cannot be taken back.
type pipeSink struct {
	blob
	pipe *io.PipeWriter
	at   int64
}

// At implements layerblob.Sink.
func (p *pipeSink) At() int64 { return p.at }

// Take implements layerblob.Sink.
func (p *pipeSink) Take(at int64, body io.Reader) error {
	if _, err := io.CopyN(io.Discard, body, p.at-at); err != nil {
		return err
	}
	n, err := io.Copy(p.pipe, io.LimitReader(body, p.size-p.at))
	if p.at += n; err == nil && p.at < p.size {
		err = &chunk.InvalidError{What: "layer " + p.digest, Err: fmt.Errorf("it has %d bytes, not %d", p.at, p.size)}
	}
	return err
}
