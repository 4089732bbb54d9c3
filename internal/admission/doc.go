// Package admission decides who may send how much: at what rate, of what size, and whether the disk has space.
package admission
