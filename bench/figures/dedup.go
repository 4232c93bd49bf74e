package figures

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/bench"
	"lighter/format/chunk"
	"lighter/test/testkit/layout"
	"lighter/test/testkit/site"
)

// dedup reports the total size of the five images and sci2 (sci with other package versions) if
// each layer, each file, or each chunk is stored once.
func (r *run) dedup(ctx context.Context) error {
	images := append(r.images(), "sci2")
	if err := r.Need(ctx, images...); err != nil {
		return err
	}
	s, err := newSums()
	if err != nil {
		return err
	}
	for _, image := range images {
		dir, err := r.Config.Layout(image)
		if err != nil {
			return err
		}
		if err := s.addImage(dir); err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
	}
	packs, err := r.Site.Hub.Stored("objects/packs")
	if err != nil {
		return err
	}
	s.chunksPacked = packs
	r.reportDedup(images, s)
	return nil
}

func (r *run) reportDedup(images []string, s *sums) {
	mode := []string{site.Overlayfs, "files", site.Lighter}
	plain := []int64{s.layers, s.files, s.chunks}
	packed := []int64{s.layersPacked, s.filesPacked, s.chunksPacked}
	what := []string{"each layer once", "each file once", "each chunk once"}
	note := []string{"compressed: gzip, as in the registry", "compressed: zstd, each file alone",
		"compressed: packs on the hub's disk"}
	for i := range mode {
		r.rows = append(r.rows, benchRow{row: row{Workload: "dedup: " + what[i], Mode: mode[i]},
			Image: fmt.Sprint(images), Rounds: 1,
			Values: map[string]float64{"all_bytes": float64(s.all), "unique_bytes": float64(plain[i]),
				"compressed_bytes": float64(packed[i])}})
		r.verdicts = append(r.verdicts, verdict{Figure: "dedup", What: what[i] + " of " + bench.Size(s.all),
			Lighter: bench.Size(plain[i]) + " / " + bench.Size(packed[i]), Value: float64(plain[i]) / float64(s.all),
			Unit: "ratio", Result: noTarget, Note: note[i]})
	}
}

// sums holds the sizes of the images' regular files, in bytes.
type sums struct {
	all                       int64            // of all files
	layers, files, chunks     int64            // with each layer, file or chunk counted once
	layersPacked, filesPacked int64            // compressed sizes of the layers' blobs, and of single files
	chunksPacked              int64            // size of the hub's packs
	seenLayer                 map[string]int64 // bytes of the files of each layer
	seenFile, seenChunk       map[chunk.ID]bool
	splitter                  chunk.Splitter
	compressor                *zstd.Encoder
	content, compressed       []byte // buffers of one file's bytes
}

func newSums() (*sums, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	return &sums{seenLayer: map[string]int64{}, seenFile: map[chunk.ID]bool{}, seenChunk: map[chunk.ID]bool{},
		compressor: z}, err
}

func (s *sums) addImage(dir string) error {
	manifest, err := layout.Manifest(dir)
	if err != nil {
		return err
	}
	for _, layer := range manifest.Layers {
		key := layer.Digest.String()
		if _, ok := s.seenLayer[key]; !ok {
			n, err := s.addLayer(dir, layer)
			if err != nil {
				return err
			}
			s.seenLayer[key] = n
			s.layers += n
			s.layersPacked += layer.Size
		}
		s.all += s.seenLayer[key]
	}
	return nil
}

func (s *sums) addLayer(dir string, layer ocispec.Descriptor) (int64, error) {
	f, err := os.Open(layout.Blob(dir, layer))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return 0, err
	}
	var sum int64
	t := tar.NewReader(z)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return 0, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		sum += h.Size
		if err := s.addFile(t, h.Size); err != nil {
			return 0, fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

func (s *sums) addFile(r io.Reader, size int64) error {
	if int64(cap(s.content)) < size {
		s.content = make([]byte, size)
	}
	s.content = s.content[:size]
	if _, err := io.ReadFull(r, s.content); err != nil {
		return err
	}
	id := chunk.Sum(s.content)
	if s.seenFile[id] {
		return nil
	}
	s.seenFile[id] = true
	s.files += size
	s.compressed = s.compressor.EncodeAll(s.content, s.compressed[:0])
	s.filesPacked += int64(len(s.compressed))
	return s.splitter.Split(bytes.NewReader(s.content), size, func(data []byte, _ int64) error {
		if data == nil {
			return nil // zeros are not stored
		}
		if id := chunk.Sum(data); !s.seenChunk[id] {
			s.seenChunk[id] = true
			s.chunks += int64(len(data))
		}
		return nil
	})
}
