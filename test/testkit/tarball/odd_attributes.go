package tarball

import (
	"encoding/binary"
	"strings"
)

func oddAttributes() []Chain {
	v3 := func(root uint32) string {
		return string(binary.LittleEndian.AppendUint32([]byte("\x01\x00\x00\x03"+capV2()[4:]), root))
	}
	file := func(name, value string) []byte { return Of(File("a", "x", Xattr(name, value))) }
	return []Chain{
		accepted("attributes: modes", Of(File("a", "", Mode(0o7777)), Dir("b", Mode(0o7777)), File("c", "", Mode(0)),
			Dir("d", Mode(0)),
			File("e", "", Mode(0o100644)), Dir("f", Mode(0o120755)), File("g", "", Mode(1<<40|0o640)),
			File("h", "", Mode(-1)))),
		accepted("attributes: owners", Of(File("a", "", Owner(1<<31, 4294967294)),
			File("b", "", Owner(4294967295, 4294967295)),
			File("c", "", Owner(-1, -2)), File("d", "", Owner(4294967296, 1<<40+5)),
			File("e", "", PAX("uid", "5"), PAX("gid", "-1")))),
		accepted("attributes: an owner that is kept",
			Of(Dir("a", Owner(5, 6)), Dir("a", Owner(4294967295, 7)), File("f", "", Owner(1, 2)),
				Link("g", "f", Owner(-1, -1)))),
		accepted("attributes: extended", Of(File("a", "x", Xattr("user.b", "2"), Xattr("user.a", "1"),
			Xattr("user.empty", ""), Xattr("security.x", "\x00\n=\xff")),
			Dir("d", Xattr("user.\xff ", "v")))),
		accepted("attributes: in unknown namespaces",
			Of(File("a", "x", Xattr("system.x", "1"), Xattr("other", "2"), Xattr("User.x", "3"),
				Xattr("com.apple.x", "4")))),
		accepted("attributes: trusted", Of(Dir("a", Xattr("trusted.overlay.opaque", "y"), Xattr("trusted.x", "1"),
			Xattr("trusted."+strings.Repeat("n", 300), "")))),
		accepted("attributes: trusted.overlay.opaque hides nothing", Of(File("a/b", "")),
			Of(Dir("a", Xattr("trusted.overlay.opaque", "y"), Xattr("user.overlay.opaque", "y")))),
		accepted("attributes: user.* on other types",
			Of(Symlink("l", "x", Xattr("user.a", "1")), FIFO("p", Xattr("user.", "1")),
				Char("c", 1, 3, Xattr("user.a", "1")))),
		accepted("attributes: security.* on other types",
			Of(Symlink("l", "x", Xattr("security.a", "1")), FIFO("p", Xattr("security.a", "1")),
				Char("c", 1, 3, Xattr("security.a", "1")))),
		accepted("attributes: a name of 255 bytes", file("user."+strings.Repeat("n", 250), "x")),
		refused("attributes: a name of 256 bytes", file("user."+strings.Repeat("n", 251), "x")),
		refused("attributes: a name of 256 bytes in an unknown namespace", file(strings.Repeat("n", 256), "x")),
		refused("attributes: an empty name", file("", "x")),
		refused("attributes: a prefix only", file("user.", "x")),
		refused("attributes: the prefix security only", file("security.", "x")),
		refused("attributes: a value of more than 64 KiB", file("user.a", strings.Repeat("v", 1<<16+1))),
		refused("attributes: a value of more than 64 KiB in an unknown namespace",
			file("other", strings.Repeat("v", 1<<16+1))),
		accepted("attributes: a value of 64 KiB in an unknown namespace", file("other", strings.Repeat("v", 1<<16))),
		accepted("capabilities: version 2", file("security.capability", capV2())),
		accepted("capabilities: version 3", file("security.capability", v3(1000))),
		accepted("capabilities: version 3 for root", file("security.capability", v3(0))),
		refused("capabilities: version 3 for an invalid user", file("security.capability", v3(1<<32-1))),
		refused("capabilities: version 1", file("security.capability",
			"\x01\x00\x00\x01\x00\x20\x00\x00\x00\x00\x00\x00")),
		refused("capabilities: too short", file("security.capability", capV2()[:19])),
		refused("capabilities: other flags", file("security.capability", "\x02"+capV2()[1:])),
		accepted("capabilities: empty", file("security.capability", "")),
		accepted("capabilities: empty ones are kept",
			Of(File("a", "", Xattr("security.capability", "")), Link("b", "a"))),
		accepted("capabilities: on other types", Of(Dir("d", Xattr("security.capability", capV2())),
			Symlink("l", "x", Xattr("security.capability", capV2())),
			FIFO("p", Xattr("security.capability", capV2())), Dir("d", Owner(1, 1)), Link("m", "l"))),
	}
}

// An ace is an entry of a POSIX ACL: tag, permissions, user or group ID.
type ace struct {
	tag, perm uint16
	id        uint32
}

// Tags of entries of a POSIX ACL, as in linux/posix_acl.h.
const (
	userObj = 1 << iota
	user
	groupObj
	group
	mask
	other
)

// list returns the value of an extended attribute that contains an ACL.
func list(entries ...ace) string {
	b := []byte{2, 0, 0, 0}
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return string(b)
}

func access(entries ...ace) Option  { return Xattr("system.posix_acl_access", list(entries...)) }
func inherit(entries ...ace) Option { return Xattr("system.posix_acl_default", list(entries...)) }

func oddLists() []Chain {
	full := []ace{{userObj, 6, 0}, {user, 7, 1000}, {groupObj, 4, 9}, {group, 5, 7}, {mask, 7, 1<<32 - 1},
		{other, 4, 0}}
	plain := []ace{{userObj, 7, 0}, {groupObj, 5, 0}, {other, 1, 0}}
	bad := func(name string, entries ...ace) Chain {
		return refused("ACLs: "+name, Of(File("a", "", access(entries...))))
	}
	return []Chain{
		accepted("ACLs: of a file", Of(File("a", "", access(full...), Mode(0o640)))),
		accepted("ACLs: equivalent to the mode", Of(File("a", "", access(plain...), Mode(0o640)))),
		accepted("ACLs: a mask without named users",
			Of(File("a", "", access(ace{userObj, 6, 0}, ace{groupObj, 7, 0}, ace{mask, 4, 0}, ace{other, 0, 0}),
				Mode(0o777)))),
		accepted("ACLs: inherited", Of(Dir("d", inherit(full...)), File("d/f", "", Mode(0o600)),
			Dir("d/e", Mode(0o2711)), Dir("d/e/g"),
			Symlink("d/l", "x"), FIFO("d/p"), Char("d/c", 1, 3), File("d/x/y", ""))),
		accepted("ACLs: a minimal one inherited", Of(Dir("d", inherit(plain...)), File("d/f", "", Mode(0o666)),
			Dir("d/e"))),
		accepted("ACLs: not inherited by existing entries",
			Of(Dir("d"), File("d/f", ""), Dir("d/e"), Dir("d", inherit(full...)), Link("d/g", "d/f"), Dir("d/e"))),
		accepted("ACLs: not inherited by the layer above", Of(Dir("d", inherit(full...))),
			Of(Dir("d"), File("d/f", ""))),
		accepted("ACLs: copied up to the layer above", Of(Dir("d", inherit(full...), access(full...))),
			Of(File("d/f", ""))),
		accepted("ACLs: inherited and replaced", Of(Dir("d", inherit(full...)), File("d/f", "", access(plain...)),
			Dir("d/e", inherit(plain...)),
			File("d/g", "", Xattr("system.posix_acl_access", "")),
			Dir("d/h", Xattr("system.posix_acl_default", "\x02\x00\x00\x00")))),
		accepted("ACLs: inherited, not by a copied-up directory", Of(Dir("d/e", Mode(0o700))),
			Of(Dir("d", inherit(full...)), File("d/e/f", ""))),
		accepted("ACLs: removed", Of(Dir("d", access(full...), inherit(full...)),
			Dir("d", Xattr("system.posix_acl_access", ""), Xattr("system.posix_acl_default", "")))),
		accepted("ACLs: changed by chmod", Of(File("a", "", access(full...)), Link("b", "a", Mode(0o4712)))),
		accepted("ACLs: of another version", Of(File("a", "", Xattr("system.posix_acl_access", "\x01\x00\x00\x00")),
			File("b", "", Xattr("system.posix_acl_default", "\x03\x00\x00\x00x")))),
		accepted("ACLs: on links", Of(Symlink("a", "x", access(full...), inherit(full...)),
			Symlink("b", "x", access(ace{userObj, 9, 0})))),
		refused("ACLs: truncated, on links", Of(Symlink("a", "x",
			Xattr("system.posix_acl_access", "\x02\x00\x00\x00x")))),
		accepted("ACLs: on other types", Of(FIFO("a", access(full...)), Char("b", 1, 3, access(full...)))),
		accepted("ACLs: an empty default ACL on a file", Of(File("a", "", inherit()))),
		refused("ACLs: a default ACL on a file", Of(File("a", "", inherit(plain...)))),
		refused("ACLs: shorter than a header", Of(File("a", "", Xattr("system.posix_acl_access", "\x02\x00\x00")))),
		refused("ACLs: truncated", Of(File("a", "", Xattr("system.posix_acl_access", list(full...)[:20])))),
		bad("out of order", ace{userObj, 6, 0}, ace{other, 4, 0}, ace{groupObj, 4, 0}),
		bad("no owner", ace{groupObj, 4, 0}, ace{other, 4, 0}),
		bad("no others", ace{userObj, 6, 0}, ace{groupObj, 4, 0}),
		bad("no mask", ace{userObj, 6, 0}, ace{user, 7, 1}, ace{groupObj, 4, 0}, ace{other, 4, 0}),
		bad("two owners", ace{userObj, 6, 0}, ace{userObj, 6, 0}, ace{groupObj, 4, 0}, ace{other, 4, 0}),
		bad("an invalid permission", ace{userObj, 14, 0}, ace{groupObj, 4, 0}, ace{other, 4, 0}),
		bad("an unknown tag", ace{userObj, 6, 0}, ace{groupObj, 4, 0}, ace{other, 4, 0}, ace{64, 4, 0}),
		bad("an invalid user", ace{userObj, 6, 0}, ace{user, 6, 1<<32 - 1}, ace{groupObj, 4, 0}, ace{mask, 7, 0},
			ace{other, 4, 0}),
	}
}

func oddDevices() []Chain {
	return []Chain{
		accepted("devices: of all types", Of(Char("c", 1, 3, Mode(0o666)), Block("b", 259, 70000, Owner(0, 6)),
			FIFO("p", Mode(0o4622)))),
		accepted("devices: large numbers", Of(Char("a", 4095, 1048575), Char("b", 4096, 1), Char("c", 1, 1<<20),
			Block("d", 1<<32-1, 1<<32-1))),
		refused("devices: a number of 33 bits", Of(Char("a", 1<<32, 0))),
		refused("devices: a negative number", Of(Block("a", 0, -1))),
		refused("devices: a FIFO with a number of 33 bits", Of(FIFO("a", Device(1<<32, 0)))),
		accepted("devices: a file with a number", Of(File("a", "x", Device(-1, 1<<40)))),
	}
}

func oddStreams() []Chain {
	whole := Of(File("a", "x"), Dir("b"))
	broken := append([]byte(nil), whole...)
	broken[0]++
	v7 := append([]byte(nil), Of(Other(0, "a"), Other(0, "d/"), Other(0, "d/b"))...)
	for at := 0; at < 3*blockSize; at += blockSize {
		clear(v7[at+257 : at+blockSize])
		Sum(v7[at : at+blockSize])
	}
	sparse := func(options ...Option) Entry {
		e := File("a", "data", options...)
		e.Sparse = true
		return e
	}
	return []Chain{
		accepted("streams: without an end-of-archive marker", Open(File("a", "x"))),
		accepted("streams: with garbage behind the end-of-archive marker",
			append(Of(File("a", "x")), "garbage that is no header"...)),
		accepted("streams: of no bytes", nil),
		accepted("streams: without magic", v7),
		accepted("streams: a sparse file", Of(sparse(PAX("GNU.sparse.size", "10000"), PAX("GNU.sparse.numblocks", "1"),
			PAX("GNU.sparse.map", "5000,4")),
			File("b", "x"))),
		accepted("streams: a sparse file with its map inside",
			Of(File("x", "1\n5000\n4\n"+strings.Repeat("\x00", 503)+"data", PAX("GNU.sparse.major", "1"),
				PAX("GNU.sparse.minor", "0"), PAX("GNU.sparse.realsize", "10000"),
				PAX("GNU.sparse.name", "real/name")))),
		accepted("streams: a sparse file without data",
			Of(File("x", "", PAX("GNU.sparse.major", "0"), PAX("GNU.sparse.minor", "1"),
				PAX("GNU.sparse.size", "100000"), PAX("GNU.sparse.numblocks", "0"), PAX("GNU.sparse.map", "")))),
		refused("streams: a sparse file with a wrong map",
			Of(sparse(PAX("GNU.sparse.size", "10"), PAX("GNU.sparse.numblocks", "1"),
				PAX("GNU.sparse.map", "5000,4")))),
		refused("streams: an old sparse file", Of(Other('S', "a"))),
		refused("streams: a contiguous file", Of(Other('7', "a"))),
		refused("streams: an unknown type", Of(Other('Z', "a"))),
		refused("streams: truncated in a header", whole[:300]),
		refused("streams: truncated before a file's content", whole[:512]),
		accepted("streams: truncated behind a file's content", whole[:513]),
		refused("streams: truncated in a whiteout's content", Open(File(".wh.a", "content"))[:515]),
		refused("streams: a wrong checksum", broken),
		refused("streams: garbage", []byte(strings.Repeat("no tar ", 200))),
		refused("streams: a negative size", Of(File("a", "x", Claim(-1)))),
		refused("streams: an absurd size", Open(File("a", "x", Claim(1<<62)))),
		refused("streams: a size beyond the end of the archive", Open(File("a", "x", Claim(513)))),
		accepted("streams: the size of a directory",
			Of(Entry{Type: TypeDir, Name: "a", Mode: 0o755, Size: 4096},
				Entry{Type: TypeSymlink, Name: "b", Linkname: "a", Size: 1})),
		refused("streams: an invalid record", Of(File("a", "x", PAX("mtime", "soon")))),
		refused("streams: a NUL in a record", Of(File("a", "x", PAX("path", "a\x00b")))),
		accepted("streams: records that override the header",
			Of(File("a", "x", PAX("path", "b"), PAX("uid", "7"), PAX("comment", "hello")),
				Symlink("c", "d", PAX("linkpath", "e")))),
		accepted("streams: an empty record", Of(File("a", "x", PAX("path", ""), PAX("uid", "")))),
		accepted("streams: global records are ignored",
			Of(Global("g", PAX("uid", "7"), PAX("SCHILY.xattr.user.a", "x")), File("a", "x"))),
	}
}
