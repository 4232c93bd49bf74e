package tarball

import (
	"math/rand/v2"
	"strings"
)

// Noise returns n bytes that do not compress. They are always the same.
func Noise(n int) string {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return string(b)
}

// large is the size of a file that has several chunks in each format.
const large = 9 << 20

// Kinds returns two layers for an image of Debian, the lower one first. They have every kind of
// entry that all converters of images take.
func Kinds() [][]Item { return [][]Item{lowerKinds(), upperKinds()} }

func lowerKinds() []Item {
	long := strings.Repeat("long", 63)
	// cap_net_raw is permitted and effective.
	capability := "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	return []Item{
		Dir("odd", Mode(0o2750), Owner(7, 8), Time(1_500_000_000, 0)),
		File("odd/empty", ""), File("odd/setuid", "text", Mode(0o4755)),
		File("odd/setgid", "text", Mode(0o2711), Owner(1000, 4294967294)),
		Dir("odd/sticky", Mode(0o1777)), Dir("odd/a"), Dir("odd/a/b"),
		File("odd/nanoseconds", "text", Time(1_500_000_000, 123_456_789)),
		File("odd/original", "linked"), Link("odd/a/b/link", "odd/original"),
		Link("odd/z", "odd/a/b/link"),
		Symlink("odd/symlink", "a/b/link"), Symlink("odd/dangling", "/no/such/file", Owner(3, 4)),
		Char("odd/char", 1, 3), Block("odd/block", 7, 260), FIFO("odd/fifo", Mode(0o622)),
		File("odd/xattrs", "text", Xattr("user.text", "1"), Xattr("user.binary", "\x00\xff\n"),
			Xattr("security.capability", capability)),
		Dir("odd/dir-xattr", Xattr("user.dir", "2")),
		File("odd/"+long, "long name"), Dir("odd/" + strings.Repeat("deep/", 60)),
		File("odd/"+strings.Repeat("deep/", 60)+"file", "deep"),
		Symlink("odd/far", strings.Repeat("far/", 200)),
		File("odd/names ü \t\"\\ *", "text"), File("odd/large", Noise(large)),
		File("odd/zeros", string(make([]byte, 3<<20))+"end"),
		File("odd/removed", "text"), Dir("odd/removed-dir"), File("odd/removed-dir/file", "text"),
		Dir("odd/opaque"), File("odd/opaque/hidden", "text"), File("odd/file-to-dir", "text"),
		Dir("odd/dir-to-file"), File("odd/dir-to-file/gone", "text"), File("odd/grown", "text"),
		File("odd/kept", "text"), File("no/parent/entry", "text"),
	}
}

func upperKinds() []Item {
	return []Item{
		Whiteout("odd/removed"), Whiteout("odd/removed-dir"), Whiteout("usr/share/doc"),
		Dir("odd/opaque", Mode(0o700)), Opaque("odd/opaque"), File("odd/opaque/shown", "text"),
		Dir("odd/file-to-dir"), File("odd/file-to-dir/new", "text"), File("odd/dir-to-file", "text"),
		File("odd/grown", Noise(5<<20)), Link("odd/grown-link", "odd/grown"),
		File("odd/original", "no longer linked"), Dir("odd/a/new", Owner(5, 6)),
	}
}
