// Fills the heap to 80 % of GOMEMLIMIT with live data, and makes garbage all the time.
package main

import (
	"fmt"
	"runtime/debug"
)

const piece = 256 << 10

var garbage []byte

func main() {
	limit := debug.SetMemoryLimit(-1)
	var held [][]byte
	for size := int64(0); size < limit*8/10; size += piece {
		for i := 0; i < 4; i++ {
			garbage = make([]byte, piece)
			garbage[0] = 1
		}
		data := make([]byte, piece)
		for at := 0; at < piece; at += 4096 {
			data[at] = 1
		}
		held = append(held, data)
	}
	fmt.Println("filled:", len(held)*piece, "of", limit)
}
