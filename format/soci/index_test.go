package soci

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"lighter/test/testkit/golden"
)

func sampleIndex() *Index {
	return &Index{Tool: goldenTool, Layers: []IndexedLayer{
		{Layer: Digest{1}, MediaType: ocispec.MediaTypeImageLayerGzip, Table: Blob{Digest{2}, 1000}, SpanSize: 4 << 20,
			Prefetch: &Blob{Digest{3}, 80}},
		{Layer: Digest{4}, MediaType: ocispec.MediaTypeImageLayer, Table: Blob{Digest{5}, 2000}, SpanSize: 1 << 20,
			NoXattrs: true},
	}}
}

func withSubject(i *Index) *Index {
	i.Subject = &ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Size: 7,
		Digest: "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}
	return i
}

func TestIndexRoundTrip(t *testing.T) {
	for name, i := range map[string]*Index{"v1": withSubject(sampleIndex()), "v2": sampleIndex()} {
		text := i.Encode()
		golden.Compare(t, "index-"+name+".golden", string(text))
		if got, err := DecodeIndex(text); err != nil || !reflect.DeepEqual(got, i) {
			t.Errorf("%s: got %+v (%v), want %+v", name, got, err, i)
		}
	}
}

func TestInvalidIndexes(t *testing.T) {
	v1, v2 := string(withSubject(sampleIndex()).Encode()), string(sampleIndex().Encode())
	layer, table := Digest{1}.String(), Digest{2}.String()
	for name, text := range map[string]string{
		"no JSON":               v2[1:],
		"another config":        strings.ReplaceAll(v2, "soci.index.v2", "soci.index.v3"),
		"no subject":            strings.ReplaceAll(v1, `"subject"`, `"object"`),
		"the subject's digest":  strings.ReplaceAll(v1, `","size":7`, `0","size":7`),
		"no layers":             strings.ReplaceAll(v2, `"layers"`, `"levels"`),
		"no zTOC":               strings.ReplaceAll(v2, "octet-stream", "other"),
		"no image layer":        strings.Replace(v2, annotationLayerDigest, "x", 1),
		"image layer's digest":  strings.ReplaceAll(v2, layer, "sha512:00"),
		"a zTOC's digest":       strings.ReplaceAll(v2, table, strings.ToUpper(table)),
		"a zTOC's size":         strings.ReplaceAll(v2, `"size":1000`, `"size":-1`),
		"a layer twice":         strings.ReplaceAll(v2, Digest{4}.String(), layer),
		"a span size":           strings.ReplaceAll(v2, `"4194304"`, `"many"`),
		"a span size of 0":      strings.ReplaceAll(v2, `"4194304"`, `"0"`),
		"more than 4 MiB":       v2 + strings.Repeat(" ", MaxIndex),
		"a manifest of another": `{"schemaVersion":2}`,
	} {
		if text == v1 || text == v2 {
			t.Errorf("%s: the index was not changed", name)
		}
		if got, err := DecodeIndex([]byte(text)); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}

// Hints that belong to no zTOC, and layers that are not known, are no error.
func TestUnknownPartsOfAnIndex(t *testing.T) {
	text := string(sampleIndex().Encode())
	i := sampleIndex()
	i.Layers[0].Prefetch = nil
	for name, changed := range map[string]string{
		"prefetch of an unknown media type": strings.ReplaceAll(text, MediaTypePrefetch, "application/x"),
		"prefetch of an unknown layer": strings.ReplaceAll(text, `80,"annotations":{"`+annotationLayerDigest+
			`":"sha256:01`, `80,"annotations":{"`+annotationLayerDigest+`":"sha256:02`),
	} {
		if changed == text {
			t.Errorf("%s: the index was not changed", name)
		}
		if got, err := DecodeIndex([]byte(changed)); err != nil || !reflect.DeepEqual(got, i) {
			t.Errorf("%s: got %+v (%v), want %+v", name, got, err, i)
		}
	}
}

func FuzzDecodeIndex(f *testing.F) {
	f.Add(sampleIndex().Encode())
	f.Add(withSubject(sampleIndex()).Encode())
	f.Fuzz(func(t *testing.T, text []byte) {
		i, err := DecodeIndex(text)
		if err != nil {
			return
		}
		again, err := DecodeIndex(i.Encode())
		if err != nil || !bytes.Equal(again.Encode(), i.Encode()) {
			t.Errorf("encoded and decoded again: got %+v (%v), want %+v", again, err, i)
		}
	})
}

func TestPrefetchRoundTrip(t *testing.T) {
	list := []Spans{{First: 7, Last: 8}, {First: 1, Last: 3}, {First: 4, Last: 4}, {First: 2, Last: 2},
		{First: 0, Last: 9, Priority: 1}}
	want := []Spans{{First: 1, Last: 4}, {First: 7, Last: 8}, {First: 0, Last: 9, Priority: 1}}
	text := EncodePrefetch(list)
	golden.Compare(t, "prefetch.golden", string(text))
	if got, err := DecodePrefetch(text, 10); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v (%v), want %v", got, err, want)
	}
	if list[0].First != 7 {
		t.Error("EncodePrefetch has changed its argument")
	}
}

func TestInvalidPrefetch(t *testing.T) {
	text := string(EncodePrefetch([]Spans{{First: 1, Last: 3}}))
	for name, changed := range map[string]string{
		"no JSON":          text[1:],
		"another version":  strings.ReplaceAll(text, "1.0", "2.0"),
		"empty":            strings.ReplaceAll(text, "prefetch_spans", "spans"),
		"a negative span":  strings.ReplaceAll(text, ":1,", ":-1,"),
		"a last before":    strings.ReplaceAll(text, ":1,", ":4,"),
		"behind the spans": strings.ReplaceAll(text, ":3", ":5"),
		"too large":        text + strings.Repeat(" ", MaxPrefetch),
	} {
		if got, err := DecodePrefetch([]byte(changed), 5); err == nil || changed == text {
			t.Errorf("%s: got %v, want an error", name, got)
		}
	}
}

func FuzzDecodePrefetch(f *testing.F) {
	f.Add(EncodePrefetch([]Spans{{First: 1, Last: 3}, {First: 6, Last: 6, Priority: 2}}), 10)
	f.Fuzz(func(t *testing.T, text []byte, spans int) {
		list, err := DecodePrefetch(text, spans)
		if err != nil {
			return
		}
		if _, err := DecodePrefetch(EncodePrefetch(list), spans); err != nil {
			t.Errorf("encoded and decoded again: %v", err)
		}
	})
}
