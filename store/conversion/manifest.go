package conversion

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/store/registry"
)

// uncompressedSize is the annotation of a layer that has the size of its tar in bytes, as
// stargz-snapshotter writes it.
const uncompressedSize = "io.containers.estargz.uncompressed-size"

// lostAnnotations are the beginnings of annotations that describe the bytes of the old layers.
var lostAnnotations = []string{"containerd.io/snapshot/stargz/", "io.containers.estargz.",
	"io.containers.zstd-chunked.", "io.github.containers.zstd-chunked.", "com.amazon.soci."}

// keptAnnotations returns the annotations that are true of the new image, too.
func keptAnnotations(all map[string]string) map[string]string {
	var kept map[string]string
	for key, value := range all {
		lost := false
		for _, begin := range lostAnnotations {
			lost = lost || strings.HasPrefix(key, begin)
		}
		if lost {
			continue
		}
		if kept == nil {
			kept = map[string]string{}
		}
		kept[key] = value
	}
	return kept
}

// configOf returns a config with other diffIDs. All else stays, also what nobody here knows.
func configOf(config []byte, diffIDs []digest.Digest) ([]byte, error) {
	var all, root map[string]json.RawMessage
	if err := json.Unmarshal(config, &all); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(all["rootfs"], &root); err != nil || root == nil {
		return nil, errors.Join(errors.New("it has no object rootfs"), err)
	}
	if diffIDs == nil {
		diffIDs = []digest.Digest{}
	}
	var err error
	if root["diff_ids"], err = json.Marshal(diffIDs); err != nil {
		return nil, err
	}
	if all["rootfs"], err = json.Marshal(root); err != nil {
		return nil, err
	}
	return encode(all)
}

// indexOf returns an index of images, which are followed by their SOCI indexes: clients take the
// first manifest that fits their platform.
func indexOf(all []made) (ocispec.Descriptor, []byte, error) {
	index := ocispec.Index{MediaType: ocispec.MediaTypeImageIndex}
	index.SchemaVersion = 2
	for _, m := range all {
		index.Manifests = append(index.Manifests, m.descriptor)
	}
	for _, m := range all {
		if m.index != nil {
			index.Manifests = append(index.Manifests, *m.index)
		}
	}
	b, err := encode(index)
	return describe(index.MediaType, b), b, err
}

// encode returns JSON in which no characters are escaped that need not be.
func encode(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

func describe(mediaType string, b []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(b), Size: int64(len(b))}
}

func platformOf(image *registry.Original) string { return platforms.Format(image.Platform) }
