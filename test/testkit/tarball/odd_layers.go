package tarball

func oddReplacements() []Chain {
	return []Chain{
		accepted("replaced: a file by a directory", Of(File("a", "x")), Of(Dir("a"), File("a/b", "y"))),
		accepted("replaced: a directory by a file", Of(File("a/b", "y")), Of(File("a", "x"))),
		accepted("replaced: a directory by a file and again", Of(File("a/b", "y")), Of(File("a", "x")), Of(File("a/c", "z"))),
		accepted("replaced: within a layer", Of(File("a/b", "y"), File("a", "x"), Dir("c"), Symlink("c", "a"), Symlink("d", "a"), Dir("d"), File("d/e", ""))),
		refused("replaced: a file below a directory that is a file now", Of(File("a", "x"), File("a/b", "y"))),
		refused("replaced: a directory whose time comes later", Of(Dir("a/b"), File("a", "x"))),
		accepted("replaced: a directory over a link to one", Of(File("d/f", "x"), Symlink("a", "d")), Of(Dir("a"), File("a/g", "y"))),
		accepted("replaced: a link over a directory", Of(File("a/f", "x"), Dir("b")), Of(Symlink("a", "b")), Of(File("a/g", "y"))),
		accepted("replaced: a file by an empty one", Of(File("a", "x", Mode(0o600))), Of(File("a", ""))),
		accepted("replaced: a directory by a device", Of(File("a/b", "")), Of(Char("a", 5, 1))),
		accepted("replaced: a directory's attributes", Of(Dir("a", Owner(1, 1), Xattr("user.a", "1")), File("a/b", "")),
			Of(Dir("a", Mode(0o700), Owner(2, 2), Time(4, 4), Xattr("user.b", "2")))),
		accepted("replaced: a directory's attributes within a layer", Of(Dir("a", Owner(1, 1), Xattr("user.a", "1"), Xattr("user.c", "0")), File("a/b", ""),
			Dir("a", Mode(0o700), Owner(2, 2), Time(4, 4), Xattr("user.b", "2"), Xattr("user.c", "3")))),
		accepted("replaced: by a global header", Of(File("pax", "x"), File("b", "y"), Global("pax"), Global("d/e", PAX("comment", "x")))),
		accepted("replaced: by a global header of a whiteout", Of(File("a", "x")), Of(Global(".wh.a"), Global(".wh..wh..opq"))),
	}
}

func oddWhiteouts() []Chain {
	base := Of(File("a", "1"), File("d/e", "2"), File("d/f/g", "3"), Symlink("l", "d"))
	return []Chain{
		accepted("whiteouts: a file", base, Of(Whiteout("a"))),
		accepted("whiteouts: a directory", base, Of(Whiteout("d"))),
		accepted("whiteouts: below a directory", base, Of(Whiteout("d/e"), Whiteout("d/f/g"))),
		accepted("whiteouts: a link", base, Of(Whiteout("l"))),
		accepted("whiteouts: through a link of the layer below", base, Of(Whiteout("l/e"))),
		accepted("whiteouts: through a link", base, Of(Symlink("m", "d"), Whiteout("m/e"))),
		accepted("whiteouts: of nothing", base, Of(Whiteout("x"), Whiteout("y/z"))),
		accepted("whiteouts: and made again later", base, Of(Whiteout("a"), Whiteout("d")), Of(File("a", "new"), File("d/new", ""))),
		accepted("whiteouts: before the new one", base, Of(Whiteout("d"), Dir("d"), File("d/new", ""))),
		refused("whiteouts: behind the new one", base, Of(File("a", "new"), Whiteout("a"))),
		refused("whiteouts: behind a new directory", base, Of(Dir("d"), Whiteout("d"))),
		refused("whiteouts: twice", base, Of(Whiteout("a"), Whiteout("a"))),
		refused("whiteouts: below one", base, Of(Whiteout("d"), Whiteout("d/e"))),
		refused("whiteouts: of no name", base, Of(Whiteout(""))),
		refused("whiteouts: of a dot", base, Of(Whiteout("d/."))),
		refused("whiteouts: of two dots", base, Of(Whiteout("d/.."))),
		refused("whiteouts: of no name in the lowest layer", Of(Dir("d/.wh."))),
		accepted("whiteouts: of three dots", base, Of(Whiteout("..."))),
		accepted("whiteouts: of any type", base, Of(Dir(".wh.a"), Symlink("d/.wh.e", "x"), Char("d/f/.wh.g", 1, 1), Other('Z', ".wh.l"))),
		accepted("whiteouts: with a content", base, Of(File(".wh.a", "content"))),
		accepted("whiteouts: as directories on the way", base, Of(File(".wh.d/.wh.f/x", "y"), File("d/.wh.x/f", "y"))),
		accepted("whiteouts: of whiteouts", base, Of(Whiteout(".wh.a"), File("b/.wh..wh..wh..opq", ""), Dir(".wh..wh.plnk"))),
		accepted("whiteouts: as devices", base, Of(Char("a", 0, 0), Char("d/e", 1<<12, 1<<20))),
		accepted("whiteouts: as a block device", base, Of(Block("a", 0, 0))),
		accepted("whiteouts: linked", base, Of(Whiteout("a"), Link("l", "a"), Link("d/e", "l"))),
		accepted("whiteouts: as devices, and made again", base, Of(Char("a", 0, 0), File("a", "new"))),
		accepted("opaque: a directory", base, Of(Opaque("d"), File("d/new", ""))),
		accepted("opaque: behind the new one", base, Of(File("d/new", ""), File("d/f/new", ""), Opaque("d"))),
		accepted("opaque: twice", base, Of(Opaque("d"), Dir("d", Mode(0o700)), Opaque("d"))),
		accepted("opaque: the root", base, Of(Opaque("."), File("new", ""))),
		accepted("opaque: through a link", base, Of(Symlink("x", "d"), Opaque("x"))),
		accepted("opaque: nothing", base, Of(Opaque("x/y"))),
		accepted("opaque: below one", base, Of(Opaque("d"), File("d/f/new", ""))),
		accepted("opaque: in the middle", base, Of(Opaque("d"), File("d/middle", "")), Of(File("d/top", ""))),
		accepted("opaque: in the middle, below", base, Of(Opaque("d/f"), File("d/f/middle", "")), Of(File("d/f/top", ""))),
		accepted("opaque: and gone", base, Of(Opaque("d"), File("d", "now a file")), Of(File("d/again", ""))),
		accepted("opaque: and made anew", base, Of(Opaque("d"), File("d", "now a file"), Dir("d"))),
		refused("opaque: a file", base, Of(File("d", ""), Opaque("d"))),
		accepted("layers: a file between directories", Of(File("d/low", "")), Of(File("d", "file")), Of(File("d/top", ""))),
		accepted("layers: a whiteout between directories", Of(File("d/low", "")), Of(Whiteout("d")), Of(File("d/top", ""))),
		accepted("layers: nothing between directories", Of(File("d/low", "")), Of(File("x", "")), Of(File("d/top", ""))),
		accepted("layers: empty ones", Of(), Of(), base, Of()),
		accepted("layers: nothing at all", Of()),
	}
}

func oddLowestLayers() []Chain {
	return []Chain{
		accepted("lowest: a whiteout of what came before", Of(File("a", "x"), File("d/e", "y"), Whiteout("a"), Whiteout("d"), File("b", ""))),
		accepted("lowest: a whiteout of what comes later", Of(Whiteout("a"), File("a", "x"))),
		accepted("lowest: a whiteout, then the same again", Of(File("a/b", "x"), Whiteout("a"), File("a/c", "y"))),
		refused("lowest: a whiteout of a directory whose time comes later", Of(Dir("a"), Whiteout("a"))),
		accepted("lowest: opaque removes what nobody has named", Of(File("a/b/c", "x"), File("a/d", "y"), Dir("a/e"), Opaque("a"))),
		accepted("lowest: opaque keeps what is named below", Of(Dir("a/b"), File("a/b/c/d", "x"), File("a/b/e", "y"), Opaque("a"))),
		accepted("lowest: opaque keeps what is named later", Of(File("a/b/c", "x"), File("a/d/e", "y"), Dir("a/b"), Opaque("a"))),
		accepted("lowest: opaque works once", Of(Opaque("a"), File("a/b/c", "x"), Opaque("a"))),
		accepted("lowest: opaque works once, through any name", Of(Symlink("l", "a"), Opaque("l"), File("a/b/c", "x"), Opaque("a"))),
		accepted("lowest: opaque works once for a path", Of(Opaque("a"), Whiteout("a"), File("a/b/c", "x"), Opaque("a"))),
		accepted("lowest: opaque and the root", Of(File("a/b", "x"), File("c", "y"), Opaque("."))),
		accepted("lowest: opaque remembers paths that are gone", Of(File("a/b", "x"), Whiteout("a"), File("a/b/c", "y"), Opaque("a"))),
		accepted("lowest: opaque remembers files that are gone", Of(File("a/b", "x"), File("a", "y"), Whiteout("a"), File("a/b/c", "z"), File("a/d/e", ""), Opaque("a"))),
		accepted("lowest: opaque remembers global headers", Of(Global("a/b"), File("a/b/c", "y"), Opaque("a"))),
		accepted("lowest: opaque on nothing", Of(Opaque("a/b"))),
		accepted("lowest: a device that is a whiteout elsewhere", Of(Char("a", 0, 0), File("b", ""))),
		accepted("lowest: a device that is a whiteout", Of(Char("a", 0, 0), File("b", ""), Link("c", "a")), Of(File("d", ""))),
		accepted("lowest: a device that is a whiteout, over and under", Of(Char("a", 0, 0), Char("d/a", 0, 0)), Of(File("a", "x"), File("d/b", ""))),
	}
}

func oddParents() []Chain {
	base := Of(Dir("d", Mode(0o2750), Owner(7, 8), Time(99, 9), Xattr("user.a", "1"), Xattr("security.b", "2")),
		Dir("d/e", Mode(0o1777), Owner(9, 9), Time(98, 8)), File("d/e/f", ""))
	return []Chain{
		accepted("parents: nobody has them", Of(File("a/b/c", "x"))),
		accepted("parents: from below", base, Of(File("d/e/new", ""))),
		accepted("parents: from farther below", base, Of(File("x", "")), Of(File("d/e/new", ""))),
		accepted("parents: from the nearest", base, Of(Dir("d", Mode(0o700), Owner(1, 1))), Of(File("d/e/new", ""))),
		accepted("parents: from one that has them from below", base, Of(File("d/e/new", "")), Of(File("d/e/newer", ""))),
		accepted("parents: and named later", base, Of(File("d/e/new", ""), Dir("d", Mode(0o711), Owner(2, 2), Time(5, 5), Xattr("user.b", "3")))),
		accepted("parents: named first", base, Of(Dir("d", Mode(0o711)), File("d/e/new", ""))),
		accepted("parents: of a whiteout", base, Of(Whiteout("d/e/f"))),
		accepted("parents: of an opaque marker", base, Of(Opaque("d/e"))),
		accepted("parents: a file below", Of(File("d", "")), Of(File("d/new", ""))),
		accepted("parents: a file below, a directory farther below", base, Of(File("d", "")), Of(File("d/new", ""))),
		accepted("parents: a whiteout below", base, Of(Whiteout("d")), Of(File("d/new", ""))),
		refused("parents: below a whiteout below", base, Of(Whiteout("d")), Of(File("d/e/new", ""))),
		refused("parents: below a file below", base, Of(File("d", "")), Of(File("d/e/new", ""))),
		refused("parents: a loop below", base, Of(Symlink("d", "d")), Of(File("d/new", ""))),
		accepted("parents: hidden ones", base, Of(Dir("d"), Opaque("d")), Of(File("d/e/new", ""))),
		accepted("parents: a link below", Of(Dir("x", Mode(0o700), Owner(3, 3)), Symlink("d", "x")), Of(File("d/new", ""))),
		accepted("parents: a link to nothing below", Of(Symlink("d", "x")), Of(File("d/e/new", ""))),
		accepted("parents: a link into another layer", Of(Dir("x", Mode(0o700))), Of(Symlink("d", "/x")), Of(File("d/new", ""))),
		accepted("parents: below a link below", Of(Dir("x/e", Mode(0o700), Owner(3, 3)), Symlink("d", "/x")), Of(File("d/e/new", ""))),
		accepted("parents: a link to the root below", Of(Dir("d", Time(5, 5)), Symlink("d", "/")), Of(Opaque("d"))),
		accepted("parents: a link below with dots behind a link", Of(Dir("b", Owner(3, 3)), Symlink("a", "/b/l"), Symlink("d", "a/../b")), Of(File("d/new", ""))),
		accepted("parents: through a link of the layer", base, Of(Symlink("l", "d/e"), File("l/new", ""))),
		accepted("parents: below a set-GID directory", Of(Dir("d", Mode(0o2755), Owner(4, 5)), File("d/e/f", ""), Dir("d/g", Owner(1, 4294967295)))),
		accepted("parents: not the root's", Of(Dir("./", Mode(0o700))), Of(File("a", ""))),
		refused("parents: a capability that the kernel does not give out", Of(Dir("d", Xattr("security.capability", ""))), Of(File("d/a", ""))),
	}
}

func oddTimes() []Chain {
	return []Chain{
		accepted("times: to the nanosecond", Of(File("a", "", Time(1, 1)), Dir("b", Time(1234567890, 123456789)), Symlink("c", "a", Time(2, 999999999)))),
		accepted("times: before 1970", Of(File("a", "", Time(-1, 0)), Dir("b", Time(-1<<40, 0)), File("c", "", PAX("mtime", "-0.5")))),
		accepted("times: as late as can be", Of(File("a", "", Time(9223372036, 854775807)), File("b", "", Time(9223372036, 854775808)),
			File("c", "", Time(9223372037, 0)), File("d", "", Time(1<<62, 0)), File("e", "", Time(1<<33, 0)))),
		accepted("times: of directories with much in them", Of(Dir("a", Time(5, 5)), File("a/b", ""), Dir("a/c", Time(6, 6)), File("a/c/d", ""), Whiteout("a/b"))),
		accepted("times: of a directory that is a link now", Of(Dir("a", Time(5, 5)), File("b/c", ""), Symlink("a", "b"))),
		accepted("times: of a file, by a directory that is a link now", Of(Dir("a", Time(5, 5)), File("b", "", Time(1, 1)), Symlink("a", "b"))),
		accepted("times: of the root, by a directory that is a link now", Of(Dir("a", Time(5, 5)), Symlink("a", "/"))),
		refused("times: of a directory that is a link to nothing now", Of(Dir("a", Time(5, 5)), Symlink("a", "b"))),
		refused("times: of a directory that is a loop now", Of(Dir("a", Time(5, 5)), Symlink("a", "a"))),
		accepted("times: of a directory that is a link to a link", Of(Dir("a", Time(5, 5)), Dir("b", Time(7, 7)), Symlink("c", "b"), Symlink("a", "c"))),
		accepted("times: of a directory under two names", Of(Dir("a", Time(5, 5)), Symlink("l", "."), Dir("l/a", Time(6, 6)), Dir("./a/", Time(7, 7)))),
	}
}
