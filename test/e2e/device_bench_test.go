//go:build e2e

package e2e

import (
	"log/slog"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"lighter/node/device"
)

// BenchmarkDeviceRead measures the kernel's way to a device and back, 4 KiB at a
// time, with the kernel's help after a crash (resend) and with a journal.
func BenchmarkDeviceRead(b *testing.B) {
	for name, resend := range map[string]bool{"resend": true, "journal": false} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			s, err := device.Mount(dir, resend, slog.New(slog.DiscardHandler))
			if err != nil {
				b.Fatal(err)
			}
			stop := startServing(b, s)
			defer stop()
			const size = 64 << 20
			_, path := addDevice(b, s, "a", size, inMemory(noise(1, size)))
			b.SetParallelism(2)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) // not os.Open: this process serves it
				if err != nil {
					b.Error(err)
					return
				}
				defer unix.Close(fd)
				buffer := make([]byte, 4096)
				for pb.Next() {
					if n, err := unix.Pread(fd, buffer, rand.Int64N(size/4096)*4096); n != 4096 || err != nil {
						b.Errorf("%d bytes, %v", n, err)
						return
					}
				}
			})
		})
	}
}
