// Package wrongclock makes the clock of a process wrong, as on a machine whose clock nobody has
// set. Other processes are not affected, and neither is the monotonic clock.
//
// A Go program reads the time with a function of the vDSO: code that the kernel maps into each
// process. Shift replaces this function in its own process. The replacement is machine code for
// amd64, so Shift fails on other architectures.
package wrongclock

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// Shift makes the wall clock of this process wrong by some whole seconds. It is called once, before
// the program does anything else.
func Shift(by time.Duration) error {
	if runtime.GOARCH != "amd64" {
		return errors.New("the clock of a process can be changed on amd64 only")
	}
	start, end, err := vdso()
	if err != nil {
		return err
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	image := make([]byte, end-start)
	if _, err := memory.ReadAt(image, start); err != nil {
		return fmt.Errorf("read the vDSO: %w", err)
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return err
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return err
	}
	for _, s := range symbols {
		if s.Name != "__vdso_clock_gettime" {
			continue
		}
		if _, err := memory.WriteAt(code(int32(by/time.Second)), start+int64(s.Value)); err != nil {
			return fmt.Errorf("change the vDSO: %w", err)
		}
		return nil
	}
	return errors.New("the vDSO has no clock_gettime")
}

// vdso returns the range of addresses of the process's vDSO.
func vdso() (start, end int64, err error) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return 0, 0, err
	}
	defer maps.Close()
	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		if strings.HasSuffix(lines.Text(), "[vdso]") {
			_, err := fmt.Sscanf(lines.Text(), "%x-%x", &start, &end)
			return start, end, err
		}
	}
	return 0, 0, errors.Join(lines.Err(), errors.New("the process has no vDSO"))
}

// code returns a function clock_gettime(clock, *time) that adds seconds to CLOCK_REALTIME.
func code(seconds int32) []byte {
	b := []byte{
		0xb8, 0xe4, 0, 0, 0, // mov eax, SYS_clock_gettime
		0x0f, 0x05, // syscall, which keeps rdi and rsi
		0x85, 0xff, // test edi, edi
		0x75, 0x07, // jnz over the next instruction: another clock
		0x48, 0x81, 0x06, // add qword [rsi], seconds
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(seconds))
	return append(b, 0xc3) // ret
}
