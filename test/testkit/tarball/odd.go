package tarball

import (
	"fmt"
	"strings"
)

// A Chain is a named list of layers, the lowest first.
type Chain struct {
	Name    string
	Layers  [][]byte
	Refused bool // containerd refuses to unpack it
}

// Odd returns unusual chains of layers. Each shows one rule by which containerd, the kernel or
// archive/tar interprets a layer. End-to-end tests can put any of them into an image.
func Odd() []Chain {
	var all []Chain
	for _, group := range []func() []Chain{
		oddNames, oddLinks, oddHardLinks, oddReplacements, oddWhiteouts, oddLowestLayers,
		oddParents, oddTimes, oddAttributes, oddLists, oddDevices, oddStreams,
	} {
		all = append(all, group()...)
	}
	return all
}

func accepted(name string, layers ...[]byte) Chain { return Chain{Name: name, Layers: layers} }

func refused(name string, layers ...[]byte) Chain {
	return Chain{Name: name, Layers: layers, Refused: true}
}

func oddNames() []Chain {
	long := strings.Repeat("n", 255)
	deep := strings.Repeat("deeper-and-deeper/", 200)
	return []Chain{
		accepted("names: absolute", Of(Dir("/a"), File("/a/b", "x"), File("//a//c", "y"))),
		accepted("names: with dots", Of(Dir("./a"), File("./a/./b", "x"), File("a/../c", "y"), File("a/x/../d", "z"))),
		accepted("names: above the root", Of(File("../a", "x"), File("../../b/c", "y"), File("/../d", "z"))),
		accepted("names: that mean the root", Of(Dir("./", Mode(0o700)), Dir("/", Owner(1, 2)), Dir("..", Time(5, 5)),
			File(".", "content"), Entry{Type: 'Z', Name: "./."}, Entry{Type: TypeDir}, Symlink("../..", "x"),
			File("a", ""))),
		accepted("names: a slash at the end", Of(File("a/", "x"), Symlink("b/", "a"), Dir("c//"))),
		accepted("names: any bytes", Of(File("\xff\xfe", "x"), File("new\nline", "y"), File(" ", "z"), File("\\", ""),
			File("tab\t*?", ""), File("ü", ""), File("u\u0308", ""), File("...", ""), File(".wh", ""), File("-", ""))),
		accepted("names: 255 bytes", Of(File(long, "x"), Dir("d"), Symlink("d/"+long, long))),
		refused("names: 256 bytes", Of(File(long+"n", "x"))),
		refused("names: 256 bytes for a directory", Of(File(long+"n/a", "x"))),
		accepted("names: long, by PAX", Of(File(strings.Repeat("0123456789/", 30)+"f", "x"))),
		accepted("names: long, by GNU", Of(File(strings.Repeat("0123456789/", 30)+"f", "x", Long),
			Symlink("l", strings.Repeat("0123456789/", 30)+"f", Long))),
		accepted("names: a deep path", Of(File(deep+"f", "x")), Of(File(deep+"g", "y"))),
		refused("names: a path that is too long for the kernel",
			Of(File(strings.Repeat("deeper-and-deeper/", 230)+"f", "x"))),
		refused("names: a NUL", Of(File("x", "1\n0\n1\n"+strings.Repeat("\x00", 506)+"d", PAX("GNU.sparse.major", "1"),
			PAX("GNU.sparse.minor", "0"), PAX("GNU.sparse.realsize", "1"), PAX("GNU.sparse.name", "a\x00b")))),
		accepted("names: a whiteout of 255 bytes", Of(File(long, "x"), File("a", "")), Of(Whiteout(long))),
		refused("names: a whiteout of 256 bytes", Of(File("a", "")), Of(Whiteout(long+"n"))),
		refused("names: a whiteout of 256 bytes in the lowest layer", Of(Whiteout(long+"n"))),
		accepted("names: duplicates", Of(File("a", "1", Mode(0o600)), File("b", ""), File("./a", "22"),
			File("/a", "333"))),
	}
}

func oddLinks() []Chain {
	loop := Of(Symlink("a", "b"), Symlink("b", "a"))
	// pathOf returns a layer with a file whose path leads through n links. containerd follows at
	// most 255 links.
	pathOf := func(n int) []byte {
		items := []Item{Dir("end")}
		for i := range n - 1 {
			items = append(items, Symlink(fmt.Sprint("l", i), fmt.Sprint("l", i+1)))
		}
		return Of(append(items, Symlink(fmt.Sprint("l", n-1), "end"), File("l0/f", "x"))...)
	}
	// lookup returns a layer with a path in which the kernel itself has to follow n links. The
	// kernel follows at most 40 links.
	lookup := func(n int) []byte {
		items := []Item{Dir("end/l"), Symlink("a", "k0/l")}
		for i := range n {
			items = append(items, Symlink(fmt.Sprint("k", i), fmt.Sprint("k", i+1)))
		}
		return Of(append(items, Symlink(fmt.Sprint("k", n), "end"), File("a/f", "x"))...)
	}
	return []Chain{
		accepted("links: in a path", Of(Dir("a"), Symlink("l", "a"), File("l/f", "x"))),
		accepted("links: absolute", Of(Dir("a/b"), Symlink("l", "/a"), Symlink("m", "/a/b"), File("l/f", "x"),
			File("m/g", "y"))),
		accepted("links: out of the root", Of(Dir("a"), Symlink("l", "../../../a"), File("l/f", "x"),
			Symlink("m", "../../../../.."), File("m/g", "y"))),
		accepted("links: dangling", Of(Symlink("l", "a/b"), File("l/f", "x"))),
		accepted("links: dangling, absolute", Of(Symlink("l", "/a/b"), File("l/c/f", "x"))),
		accepted("links: to the root", Of(Symlink("l", "/"), File("l/f", "x"), Symlink("m", "."), File("m/m/l/g", "y"),
			Dir("l", Mode(0o700)))),
		accepted("links: the last component is not followed", Of(Dir("a"), Symlink("l", "a"), File("l", "x"))),
		refused("links: a loop", Of(Symlink("a", "b"), Symlink("b", "a"), File("a/f", "x"))),
		refused("links: to itself", Of(Symlink("a", "a"), File("a/f", "x"))),
		accepted("links: an unused loop", loop),
		refused("links: a loop in the layer below", loop, Of(File("a/f", "x"))),
		accepted("links: 255", pathOf(255)),
		refused("links: 256", pathOf(256)),
		accepted("links: 40 in one lookup", lookup(40)),
		refused("links: 41 in one lookup", lookup(41)),
		accepted("links: dots behind a link", Of(Dir("d/e"), Symlink("d/l", "/x/y"), Dir("x/y"),
			File("d/l/../f", "x"))),
		accepted("links: dots in a target", Of(Dir("a/b"), Symlink("l", "a/b/../c"), File("l/f", "x"))),
		accepted("links: dots behind a link in a target",
			Of(Dir("a/b/c"), Symlink("m", "a/b/c"), Symlink("l", "m/../d"), File("l/f", "x"))),
		accepted("links: dots behind a link in a target, deeper", Of(Dir("a/b/c"), Dir("q"), Symlink("q/m", "../a/b/c"),
			Symlink("q/l", "m/../d"), File("q/l/f", "x"), File("q/l/../g", "y"))),
		accepted("links: a target that ends in a slash",
			Of(Dir("a"), Symlink("l", "a/"), File("l/f", "x"), Symlink("m", "./a/."), File("m/g", "y"))),
		accepted("links: through a link that is not resolved yet",
			Of(Dir("z"), Symlink("x", "z"), Symlink("z/l", "w"), Symlink("a", "/x"), File("a/l/f", "x"))),
		accepted("links: through links that the kernel resolves",
			Of(Dir("z/y/w"), Symlink("x", "z/y"), Symlink("z/y/l", "../q"), Symlink("a", "/x"), File("a/l/f", "x"))),
		refused("links: a file as a parent", Of(File("a", "x"), File("a/f", "y"))),
		refused("links: a file as a grandparent", Of(File("a", "x"), File("a/b/f", "y"))),
		refused("links: a link to a file as a parent", Of(File("a", "x"), Symlink("l", "a"), File("l/f", "y"))),
		accepted("links: of the layer below are not followed", Of(Dir("a"), Symlink("l", "a")), Of(File("l/f", "x"))),
		accepted("links: that replace a directory of the layer below", Of(Dir("a")),
			Of(Symlink("l", "a"), File("l/f", "x"))),
		refused("links: an empty target", Of(Symlink("a", ""))),
		accepted("links: a target of 4095 bytes", Of(Symlink("a", strings.Repeat("t", 4095)))),
		refused("links: a target of 4096 bytes", Of(Symlink("a", strings.Repeat("t", 4096)))),
		accepted("links: a target of any bytes", Of(Symlink("a", "\xff\n*"), Symlink("b", "//"),
			Symlink("c", strings.Repeat("../", 50)))),
		accepted("links: attributes apply to the link", Of(File("a", "x", Mode(0o600), Owner(1, 2)),
			Symlink("l", "a", Mode(0o123), Owner(3, 4), Time(77, 7), Xattr("user.a", "left out"),
				Xattr("security.a", "kept")))),
	}
}

func oddHardLinks() []Chain {
	return []Chain{
		accepted("hard links: a group", Of(File("a", "x"), Link("b", "a"), Link("d/c", "b"), File("e", "x"))),
		accepted("hard links: change the file", Of(File("a", "x", Mode(0o4755), Owner(1, 1), Time(1, 0),
			Xattr("user.a", "1")),
			Link("b", "a", Mode(0o640), Owner(2, 3), Time(9, 9), Xattr("user.a", "2"), Xattr("user.b", "3")))),
		accepted("hard links: remove capabilities",
			Of(File("a", "x", Xattr("security.capability", capV2())), Link("b", "a"))),
		accepted("hard links: to a symlink", Of(Symlink("l", "nowhere"), Link("m", "l", Mode(0o600), Owner(5, 5)))),
		accepted("hard links: to a device and a FIFO", Of(Char("c", 1, 3), FIFO("p"), Link("d", "c"), Link("q", "p"))),
		refused("hard links: to a missing file", Of(Link("a", "b"))),
		refused("hard links: to a later entry", Of(Link("a", "b"), File("b", "x"))),
		refused("hard links: to itself", Of(File("a", "x"), Link("a", "a"))),
		refused("hard links: a loop", Of(Link("a", "b"), Link("b", "a"))),
		refused("hard links: to a directory", Of(Dir("a"), Link("b", "a"))),
		refused("hard links: to the root", Of(Link("a", "/"))),
		refused("hard links: to an empty name", Of(Link("a", ""))),
		refused("hard links: to the parent directory", Of(Dir("d"), Link("a", "d/.."))),
		refused("hard links: above the root", Of(Link("a", "../.."))),
		refused("hard links: to a file in the directory that the link replaces",
			Of(File("d/f", "x"), Link("d", "d/f"))),
		refused("hard links: to a layer below", Of(File("a", "x")), Of(Link("b", "a"))),
		refused("hard links: through a file", Of(File("a", "x"), Link("b", "a/c"))),
		accepted("hard links: from above the root",
			Of(File("a", "x"), Link("b", "../a"), Link("c", "/a"), Link("d", "./a"), Link("e", "x/../a"))),
		accepted("hard links: a slash at the end", Of(File("a", "x"), Link("b", "a/"), Link("c", "a/."),
			Symlink("l", "a"), Link("d", "l/"))),
		accepted("hard links: through symlinks", Of(File("d/a", "x"), Symlink("l", "/d"), Link("l/b", "l/a"),
			Symlink("d/m", "."), Link("c", "l/m/b"))),
		accepted("hard links: broken by the layer above", Of(File("a", "x"), Link("b", "a"), Link("c", "a")),
			Of(Whiteout("b"), File("c", "new"))),
		accepted("hard links: broken within the layer",
			Of(File("a", "x"), Link("b", "a"), File("a", "new"), Link("c", "b"), Link("d", "b"), Whiteout("d"))),
		accepted("hard links: in every layer", Of(File("a", "x"), Link("b", "a")), Of(File("a", "x"), Link("c", "a")),
			Of()),
		refused("hard links: with a size", Of(File("a", "x"),
			Entry{Type: TypeLink, Name: "b", Linkname: "a", Size: 512, Content: strings.Repeat("x", 512)})),
	}
}

// capV2 returns a value of security.capability in version 2: cap_net_raw, effective.
func capV2() string {
	return "\x01\x00\x00\x02\x00\x20\x00\x00" + strings.Repeat("\x00", 12)
}
