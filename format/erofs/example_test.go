package erofs_test

import (
	"bytes"
	"context"
	"fmt"

	"lighter/format/erofs"
	"lighter/format/tree"
)

// A tree becomes a metadata image, which is checked and read back.
func Example() {
	motd := &tree.Node{Mode: tree.ModeRegular | 0o644, Nlink: 1, Size: 3, Content: tree.Content{Inline: []byte("hi\n")}}
	etc := tree.NewDir(tree.Node{Mode: 0o755}, []tree.Dirent{{Name: "motd", Node: motd}})
	root := tree.NewDir(tree.Node{Mode: 0o755}, []tree.Dirent{{Name: "etc", Node: etc}})

	var file bytes.Buffer
	noDevice := func(*tree.Node) uint64 { return 0 } // the only file is inline
	size, err := erofs.Write(&file, &tree.Tree{Root: root}, 0, noDevice)
	if err != nil {
		fmt.Println(err)
		return
	}
	image, err := erofs.Open(bytes.NewReader(file.Bytes()), size)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = image.Walk(context.Background(), func(path string, in erofs.Inode) error {
		fmt.Printf("%o %s %q\n", in.Mode, path, in.Inline)
		return nil
	})
	fmt.Println(err)
	// Output:
	// 40755 / ""
	// 40755 /etc ""
	// 100644 /etc/motd "hi\n"
	// <nil>
}
