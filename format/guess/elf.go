package guess

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// Sizes and tags of an ELF file (System V ABI). Package debug/elf is not used here, because it is
// not made for hostile files.
const (
	// Sizes of entries, in bytes.
	elfHeader  = 64
	elfProgram = 56
	elfDynamic = 16

	ptLoad, ptDynamic, ptInterp                                       = 1, 2, 3
	dtNeeded, dtStrtab, dtRela, dtRelaSize, dtRpath, dtRunpath        = 1, 5, 7, 8, 15, 29
	elfExecutable, elfWritable                                 uint32 = 1, 2
)

// binaryFile is what a guess needs of a program or library.
type binaryFile struct {
	interp      string // path of its dynamic linker (ld.so); empty: none
	needed      []string
	rpath       []string // with $ORIGIN unresolved
	runpath     []string
	loads       []load
	relocations span // the relocation table, which ld.so reads as a whole
}

// load is a part of the file that is mapped into memory, at an address.
type load struct {
	span
	address              uint64
	executable, writable bool
}

// parseELF reads a little-endian 64-bit ELF file. It returns nil for any other file. Of a broken
// file, it returns the parts that can be read.
func parseELF(size int64, read func(offset, n int64) []byte) *binaryFile {
	h := read(0, elfHeader)
	if len(h) < elfHeader || string(h[:6]) != "\x7fELF\x02\x01" {
		return nil
	}
	le := binary.LittleEndian
	f := &binaryFile{}
	table, n := le.Uint64(h[32:]), int64(le.Uint16(h[56:]))
	if table > uint64(size) || le.Uint16(h[54:]) != elfProgram {
		return f
	}
	programs := read(int64(table), min(n, maxPrograms)*elfProgram)
	var dynamic, interp span
	for ; len(programs) >= elfProgram; programs = programs[elfProgram:] {
		kind, flags := le.Uint32(programs), le.Uint32(programs[4:])
		part, ok := fileSpan(le.Uint64(programs[8:]), le.Uint64(programs[32:]), size)
		switch {
		case !ok:
		case kind == ptLoad:
			f.loads = append(f.loads, load{part, le.Uint64(programs[16:]), flags&elfExecutable != 0,
				flags&elfWritable != 0})
		case kind == ptDynamic:
			dynamic = part
		case kind == ptInterp:
			interp = part
		}
	}
	f.interp, _, _ = strings.Cut(string(read(interp.from, min(interp.to-interp.from, maxString))), "\x00")
	f.readDynamic(read(dynamic.from, min(dynamic.to-dynamic.from, maxDynamic*elfDynamic)), size, read)
	return f
}

// fileSpan returns a part of a file, truncated at the end of the file.
func fileSpan(offset, length uint64, size int64) (span, bool) {
	if offset >= uint64(size) || length == 0 {
		return span{}, false
	}
	return span{int64(offset), int64(offset) + int64(min(length, uint64(size)-offset))}, true
}

// offset returns the file offset of an address.
func (f *binaryFile) offset(address uint64) (int64, bool) {
	for _, l := range f.loads {
		if address >= l.address && address-l.address < uint64(l.to-l.from) {
			return l.from + int64(address-l.address), true
		}
	}
	return 0, false
}

func (f *binaryFile) readDynamic(b []byte, size int64, read func(offset, n int64) []byte) {
	le := binary.LittleEndian
	var strtab, relocations, relocationsSize uint64
	var names []struct{ tag, at uint64 }
	for ; len(b) >= elfDynamic && le.Uint64(b) != 0; b = b[elfDynamic:] {
		switch tag, value := le.Uint64(b), le.Uint64(b[8:]); tag {
		case dtStrtab:
			strtab = value
		case dtRela:
			relocations = value
		case dtRelaSize:
			relocationsSize = value
		case dtNeeded, dtRpath, dtRunpath:
			if len(names) < maxNeeded {
				names = append(names, struct{ tag, at uint64 }{tag, value})
			}
		}
	}
	if from, ok := f.offset(relocations); ok {
		f.relocations, _ = fileSpan(uint64(from), relocationsSize, size)
	}
	table, ok := f.offset(strtab)
	if !ok {
		return
	}
	for _, n := range names {
		if n.at > 1<<32 {
			continue
		}
		s, _, whole := bytes.Cut(read(table+int64(n.at), maxString), []byte{0})
		switch {
		case !whole || len(s) == 0:
		case n.tag == dtNeeded:
			f.needed = append(f.needed, string(s))
		case n.tag == dtRpath:
			f.rpath = strings.Split(string(s), ":")
		case n.tag == dtRunpath:
			f.runpath = strings.Split(string(s), ":")
		}
	}
}
