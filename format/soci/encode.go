package soci

import (
	"fmt"
	"maps"
	"slices"

	flatbuffers "github.com/google/flatbuffers/go"
)

// names has the names of entries' types in zTOCs.
var names = invert(kinds)

func invert(kinds map[string]byte) map[byte]string {
	names := map[byte]string{}
	for name, kind := range kinds {
		names[kind] = name
	}
	return names
}

// encode writes the zTOC. The order of the parts is SOCI's.
func (m *maker) encode() ([]byte, error) {
	if m.size == 0 {
		return nil, fmt.Errorf("make a zTOC: the layer is empty")
	}
	b := flatbuffers.NewBuilder(m.bytes + 200*len(m.digests) + 1024)
	version := b.CreateString(Version)
	tool := b.CreateString(m.options.Tool)

	files := make([]flatbuffers.UOffsetT, len(m.files))
	for i, f := range slices.Backward(m.files) {
		files[i] = f.encode(b)
	}
	metadata := vector(b, files)
	b.StartObject(1)
	b.PrependUOffsetTSlot(tocMetadata, metadata, 0)
	toc := b.EndObject()

	zinfo := b.CreateByteVector(m.zinfo)
	digests := make([]flatbuffers.UOffsetT, len(m.digests))
	for i, d := range m.digests {
		digests[i] = b.CreateString(d.String())
	}
	list := vector(b, digests)
	b.StartObject(4)
	b.PrependInt32Slot(compressionMaxSpan, int32(len(m.digests)-1), 0)
	b.PrependUOffsetTSlot(compressionDigests, list, 0)
	b.PrependUOffsetTSlot(compressionCheckpoints, zinfo, 0)
	b.PrependInt8Slot(compressionAlgorithm, int8(m.options.Compression), int8(Gzip))
	info := b.EndObject()

	b.StartObject(6)
	b.PrependUOffsetTSlot(ztocVersion, version, 0)
	b.PrependUOffsetTSlot(ztocTool, tool, 0)
	b.PrependUOffsetTSlot(ztocTOC, toc, 0)
	b.PrependInt64Slot(ztocCompressedSize, m.size, 0)
	b.PrependInt64Slot(ztocPlainSize, m.plainSize, 0)
	b.PrependUOffsetTSlot(ztocCompression, info, 0)
	b.Finish(b.EndObject())
	return b.FinishedBytes(), nil
}

// vector writes a vector of strings or tables.
func vector(b *flatbuffers.Builder, elements []flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	b.StartVector(4, len(elements), 4)
	for _, e := range slices.Backward(elements) {
		b.PrependUOffsetT(e)
	}
	return b.EndVector(len(elements))
}

// encode writes an entry.
func (f file) encode(b *flatbuffers.Builder) flatbuffers.UOffsetT {
	h := f.header
	name := b.CreateString(h.Name)
	kind := b.CreateString(names[h.Typeflag])
	linkname := b.CreateString(h.Linkname)
	uname := b.CreateString(h.Uname)
	gname := b.CreateString(h.Gname)
	text, err := h.ModTime.UTC().MarshalText()
	if err != nil {
		text = nil // a year that has not four digits
	}
	modTime := b.CreateByteString(text)

	var records []flatbuffers.UOffsetT
	for _, key := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		k := b.CreateString(key)
		v := b.CreateString(h.PAXRecords[key])
		b.StartObject(2)
		b.PrependUOffsetTSlot(recordKey, k, 0)
		b.PrependUOffsetTSlot(recordValue, v, 0)
		records = append(records, b.EndObject())
	}
	list := vector(b, records)

	b.StartObject(14)
	b.PrependUOffsetTSlot(fileName, name, 0)
	b.PrependUOffsetTSlot(fileType, kind, 0)
	b.PrependInt64Slot(fileOffset, f.offset, 0)
	b.PrependInt64Slot(fileSize, h.Size, 0)
	b.PrependUOffsetTSlot(fileLinkname, linkname, 0)
	b.PrependInt64Slot(fileMode, h.Mode, 0)
	b.PrependUint32Slot(fileUID, uint32(h.Uid), 0)
	b.PrependUint32Slot(fileGID, uint32(h.Gid), 0)
	b.PrependUOffsetTSlot(fileUname, uname, 0)
	b.PrependUOffsetTSlot(fileGname, gname, 0)
	b.PrependUOffsetTSlot(fileModTime, modTime, 0)
	b.PrependInt64Slot(fileMajor, h.Devmajor, 0)
	b.PrependInt64Slot(fileMinor, h.Devminor, 0)
	b.PrependUOffsetTSlot(fileRecords, list, 0)
	return b.EndObject()
}
