package imagestore

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"lighter/durable"
	"lighter/node/directory"
)

// layer is a layer as layers.json has it.
type layer struct {
	ID               string    `json:"id"`
	Parent           string    `json:"parent,omitempty"`
	Created          time.Time `json:"created"`
	CompressedDigest string    `json:"compressed-diff-digest"`
	CompressedSize   int64     `json:"compressed-size"`
	DiffID           string    `json:"diff-digest"`
	Bytes            int64     `json:"diff-size"`
	Compression      int       `json:"compression,omitempty"` // as in containers/storage: 2 gzip, 4 zstd
}

// image is an image as images.json has it.
type image struct {
	ID             string            `json:"id"`     // of the config, in hexadecimal
	Digest         string            `json:"digest"` // of the manifest
	Names          []string          `json:"names,omitempty"`
	Layer          string            `json:"layer"` // ID of the topmost
	Metadata       string            `json:"metadata"`
	BigDataNames   []string          `json:"big-data-names"`
	BigDataSizes   map[string]int64  `json:"big-data-sizes"`
	BigDataDigests map[string]string `json:"big-data-digests"`
	Created        time.Time         `json:"created"`
}

const (
	manifestKey    = "manifest"
	manifestPrefix = "manifest-" // before the manifest's digest
)

// layerID returns the ID that the tools give to a layer.
func layerID(parent string, diffID digest.Digest) string {
	if parent == "" {
		return diffID.Encoded()
	}
	return digest.FromString(parent + "+" + diffID.Encoded()).Encoded()
}

// chainOf returns the chain of a layer on a chain.
func chainOf(parent, diffID string) string {
	if parent == "" {
		return diffID
	}
	return digest.FromString(parent + " " + diffID).String()
}

// linkOf returns the short name of a layer in the options of a mount.
func linkOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return base32.StdEncoding.EncodeToString(sum[:])[:26]
}

// fileOf returns the name of the file that has an image's data with a key.
func fileOf(key string) string {
	for _, c := range key {
		if c != '.' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return "=" + base64.StdEncoding.EncodeToString([]byte(key))
		}
	}
	return key
}

func stateFile(dir string) string      { return filepath.Join(dir, "lighter.json") }
func layersFile(dir string) string     { return filepath.Join(dir, "overlay-layers", "layers.json") }
func splitFile(dir, id string) string  { return filepath.Join(dir, "overlay-layers", id+splitSuffix) }
func imagesFile(dir string) string     { return filepath.Join(dir, "overlay-images", "images.json") }
func layersLock(dir string) string     { return filepath.Join(dir, "overlay-layers", "layers.lock") }
func imagesLock(dir string) string     { return filepath.Join(dir, "overlay-images", "images.lock") }
func imageDir(dir, id string) string   { return filepath.Join(dir, "overlay-images", id) }
func layerDir(dir, id string) string   { return filepath.Join(dir, "overlay", id) }
func linkFile(dir, link string) string { return filepath.Join(dir, "overlay", "l", link) }

// Trees returns where the trees of the store in dir are mounted.
func Trees(dir string) string { return filepath.Join(dir, "trees") }

// Create makes an empty store, or completes one, and changes nothing that is there. All users may
// read it. The tools fail if a store that is configured does not exist.
func Create(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("make the image store: %w", err)
	}
	for _, sub := range []string{"", "overlay", "overlay/l", "overlay-layers", "overlay-images", "trees"} {
		if err := makeDir(filepath.Join(dir, sub)); err != nil {
			return fmt.Errorf("make the image store: %w", err)
		}
	}
	for file, text := range map[string]string{layersFile(dir): "[]", imagesFile(dir): "[]",
		layersLock(dir): "", imagesLock(dir): ""} {
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := replace(file, []byte(text)); err != nil {
			return fmt.Errorf("make the image store: %w", err)
		}
	}
	return nil
}

// makeDir makes a directory that all users may read. It looks at nothing that is there: that may be
// a mount of a daemon that was killed.
func makeDir(path string) error {
	if err := os.Mkdir(path, 0o755); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return os.Chmod(path, 0o755) //nolint:gosec // every user's tools read the store
}

// replace writes a file that all users may read, and replaces an existing one.
func replace(path string, b []byte) error {
	if err := write(path+newSuffix, b); err != nil {
		return err
	}
	return durable.Publish(path+newSuffix, path)
}

const newSuffix = ".new"

// write writes a file that all users may read. It does not sync it.
func write(path string, b []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(b)
	return errors.Join(err, file.Chmod(0o644), file.Close())
}

// replaceJSON replaces a file unless it has these contents already.
func replaceJSON(path string, value any) (changed bool, err error) {
	text, err := json.Marshal(value)
	if err != nil {
		return false, err
	}
	if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, text) {
		return false, nil
	}
	return true, replace(path, text)
}

// writeLayer makes the files of a layer with a chain, and repairs what is wrong there.
func writeLayer(dir, id, chain string) error {
	// To compare a container with its image, the tools mount the image's layer alone, which needs
	// the three directories. Users cannot make them.
	for _, sub := range []string{"", "empty", "merged", "work"} {
		if err := makeDir(filepath.Join(layerDir(dir, id), sub)); err != nil {
			return err
		}
	}
	link := linkOf(id)
	if now, err := os.ReadFile(filepath.Join(layerDir(dir, id), "link")); err != nil || string(now) != link {
		if err := write(filepath.Join(layerDir(dir, id), "link"), []byte(link)); err != nil {
			return err
		}
	}
	diff := filepath.Join(layerDir(dir, id), "diff")
	if err := symlink(filepath.Join(Trees(dir), directory.Link(chain)), diff); err != nil {
		return err
	}
	if err := symlink(filepath.Join(Trees(dir), id+splitSuffix), splitFile(dir, id)); err != nil {
		return err
	}
	return symlink(filepath.Join("..", id, "diff"), linkFile(dir, link))
}

// symlink makes a symbolic link, unless it is there already.
func symlink(target, path string) error {
	if now, err := os.Readlink(path); err == nil && now == target {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}

// writeImage writes the data of an image.
func writeImage(dir, id string, data map[string][]byte) error {
	if err := makeDir(imageDir(dir, id)); err != nil {
		return err
	}
	for key, b := range data {
		path := filepath.Join(imageDir(dir, id), fileOf(key))
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, b) {
			continue // the image may be published already
		}
		if err := write(path, b); err != nil {
			return err
		}
	}
	return nil
}

// checkImage returns an error unless the files of an image have their digests.
func checkImage(dir string, i *image) error {
	for _, key := range i.BigDataNames {
		b, err := os.ReadFile(filepath.Join(imageDir(dir, i.ID), fileOf(key)))
		if err != nil {
			return err
		}
		if got := sha256.Sum256(b); "sha256:"+hex.EncodeToString(got[:]) != i.BigDataDigests[key] {
			return fmt.Errorf("%s of image %s is damaged", key, i.ID)
		}
	}
	return nil
}

// compression returns a layer's compression by the media type of its blob.
func compression(mediaType string) int {
	switch {
	case strings.HasSuffix(mediaType, "gzip"):
		return 2
	case strings.HasSuffix(mediaType, "zstd"):
		return 4
	}
	return 0
}
