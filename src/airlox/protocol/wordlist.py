"""The words of transfer codes: 2,048 of them, so that each says eleven bits.

Short, common English words, chosen for this list by ear. Their rules, each of them tested:

* three to eight letters, ASCII, lower case, in alphabetical order;
* no two begin with the same four letters;
* no two sound alike: with vowels taken for one another, as on a bad line, they still differ;
* none that hurts.

The list is part of the protocol: a word that changes, changes what codes mean.
Source: docs/protocol.md, "Transfer codes".
"""

from __future__ import annotations

from typing import Final

_TEXT: Final = """
abacus abbey ability able above abroad absent absorb abstract academy accent acorn acoustic
acquire acrobat acrylic action actor actual adapt address adequate adjust admiral adult advance
advice affect afford afraid after again agency agile agree ahead aim airbag airline airport
aisle alarm album alert algebra alibi align alley almond alone aloud alpaca alpha alpine already
also altar although aluminum always amateur amaze amber ambition amend amount ample analog
anchor ancient angle animal ankle annex announce annual answer antelope anthem antique antler
anvil anxious any apart apology appear apple approve apricot apron aquarium arcade arch arctic
arena argue armchair armor aroma around arrange arrive arrow artist ascend aside ask asleep
aspect assist astonish athlete atlas atom attach attend attic attract audio august aunt author
avenue average avocado avoid awake award away awesome awkward axis azure baby bachelor back
bacon badge baffle bagel baggage bagpipe balance balcony ballad bamboo banana band bangle banjo
bank banner banquet bar barber bargain barley barn baron barrel basil basket batch bath baton
battery bay bazaar bead beaker beam bean beat beaver become bedrock beetle begin behave believe
bell belong belt bench benefit berry beside best better between beverage bicycle big bingo
biology biplane birch bird birthday bishop blade blame blanket blaze blend blink blizzard block
blossom blue blunt blur bobcat bobsled body bold bonfire bonus bookmark border borrow boss
botany bottom boulder bounce bouquet bow bowl box bracelet brain brake branch brass brave bread
bridge bright brim brisk broccoli bronze brother brown brush bubble bucket budget buffalo bugle
bulb bulldog bumper bundle bungalow bunny burst bush busy butcher bypass cabbage cabin cable
cactus cadet cafe cage cake calendar calf call calm camel campus canal cancel candle canoe
canteen canvas canyon capable capital capsule captain caramel carbon cardigan career cargo
carnival carpet carrot cartoon carve cascade cash cast casual catalog catch cattle caution cedar
ceiling celery cello cement census center cereal certain chain chalk champion chance chapter
charge chase cheap check cheddar cheer chef cherry chest chew chicken child chimney chipmunk
chisel chorus chrome chuckle cinema cinnamon circle citizen citrus city civil claim clap
clarinet class clatter clay clean clerk clever client cliff clinic clock cloth cloud clown club
clumsy coat cobalt cobra cocoa code coffee coin cold collar column comb comedy comfort comic
common compost concert confirm connect contest convoy copper copy coral cork corn correct cosmic
costume cottage cough couple courage cousin cover cow crab cradle craft crane crater crawl cream
credit creek crew cricket crimson crisp critic crop cross crouch crowd crunch crust crystal cube
cucumber cuddle culture cup cure curious curl current cycle cylinder daffodil daily dairy daisy
damage damp dance danger daring dark dart dash data daughter dawn day dazzle deadline debate
decade decent decide deck declare decorate deep deer default defeat degree deliver delta demand
denim dentist depart depend depot depth deputy derby desert design desk despite destiny detail
detect develop device dew diagram dial dictate diesel diet differ dig digest digital dignity
dilemma dime dimple dinghy dinner dinosaur diploma direct disco distance ditch dive divide
doctor dodge dolphin domain domino donate donkey doorbell double dozen draft dragon drama drape
draw dream dress drill drink drive drizzle dry dugout dune dust dwell dynamic each eager eagle
early earn earring earth ease east easy ebony echo eclipse ecology economy edge edit educate
effort egg eggplant eight elastic elbow elder elect elegant element elephant elevator eligible
elite embark embrace emerald emotion emperor employ empty enable enchant end endless energy
engage engine enigma enjoy enlarge enrich ensure enter envelope epic episode equal era erase
error escape espresso estate eternal even ever evident exact example exceed excite excuse
exercise exhibit exist exotic expand expect explain export express extend extra eye eyebrow
fable fabric fabulous face factory fade faint fair faith falcon fall false fame family famous
fan fancy fantasy farewell farm fashion fast father faucet fault favor fax feature february
fellow fence fern ferry festival fetch few fiber fiction fiddle fidget field fierce fifteen fig
fight figure film filter final find finger finish firefly first fish five flag flame flap flash
flat flavor flea flicker flint flock flood florist flour flow fluff focus folklore footpath
forbid forest forget fork formal fort forum forward fossil foster fountain fraction fragile
frame freckle free freight fresh friday friend frog front frown frozen frugal fruitful fudge
function funny furnace fuzzy gadget gain galaxy gallery game gap garage garden garlic garment
garnet gas gasp gate gather gauge gazelle gear gecko gem general genius gentle genuine geology
gesture giant giddy gift giggle ginger giraffe girl give glacier glad glance glass gleam glimpse
glitter globe glory glossy glove glow glue goal goblin goggles gold golf good gopher gorilla
gossip govern grab grace grade grain grammar grand grape gravel gray great griddle grill grizzly
grocery groove grotto grow guard guest guitar habit hacksaw hail hair half halo hammer hamster
hand hangar happen harbor hard harmony harness harp harvest hat hatch have hawk hay haystack
hazard hazel head health heap heart heather heaven hedge helium helmet help heron herring
hesitate hexagon hidden hike hillside hinge hint hippo history hobby hockey hold holiday hollow
holster home honest horizon horn horse hospital host hotel house hover hub huddle hug human
humble humid hundred hurdle hurry husband husky hydrogen iceberg icicle icon ideal identify idle
igloo ignite ignore iguana image imitate impact import impress impulse inch include income
indeed indigo indoor inform inherit inject ink inlet inner innocent input inquiry insect inside
inspire install intact interval invent invite iron island ivory ivy jacket jade jaguar january
jargon jasmine javelin jaw jawbone jazz jeans jelly jersey jet jewel jigsaw job jog jogger join
joke journal joy jubilee judge jukebox jumbo jump jungle junior jupiter jury just kangaroo karma
kernel keyboard keystone kilo kind king kiosk kitchen kitten kiwi knapsack knee knight knob
knock know knuckle label labor lace lack ladder lady lagoon lamb lamp land lane language lantern
lap large laser lasso last late latin laugh laundry laurel lava lavender law lawn lawyer layer
lead leaf league leapfrog learn leather lecture ledge left leg legacy legend lemon length lens
lentil leopard lesson letter level liberty library license lifeboat lilac lily limerick limit
linen linger link liquid listen little liver lizard llama lobby lobster local locket logic
lonely long lord lottery lotus lounge loyal lucky luggage lukewarm lullaby lumber lunar lunch
luxury lynx lyric macaroni machine madam magazine magenta magic magnet magpie mahogany maid mail
main major make mallet mammal manage mango manor mansion mantle manual maple marathon marble
march margin marine mark marry marsh marvel mascot mask mason mast match material math matrix
matter maximum may maze meadow measure meat mechanic medal media mellow melody melt member
memory mend menu merchant merge merit mermaid mesh message metal method metro middle midnight
migrate mild milk mimic mineral minimum mint minus miracle mirror mischief mistake mitten mix
mixture mobile modest molecule moment monarch monday monitor monkey month monument moonbeam
moral morning mortar mosaic mother motion mountain move movie muffin mug mulberry multiply
muscle museum mushroom muslin mustard muzzle mystery nail name napkin narrow narwhal nation
nature navigate navy near nectar need negative neglect neighbor neon nephew nerve nest network
neutral never newborn news next nibble nice nickel nightcap nimble ninja nobody nomad noodle
normal north nostril notable notch notepad nothing notice novel nozzle nuclear nudge nugget
number nurse nutmeg nutshell nylon oak oar oasis oatmeal object observe obtain obvious ocean
octagon october office offshore often oil okay old olive olympic omelet omit once onion online
only onward opal opaque open opera opinion oppose optic oracle orbit orchard order ordinary
organ origin oscar ostrich otter outback outdoor outfit outlook output outside oval overcoat owl
own owner oxygen oyster pace pacific pack paddle padlock page pagoda pail paint pair pajamas
palace palm pamper pan pancake panda panel panic panther papaya paper paprika parade parcel
pardon parent park parlor parrot parsley part passport pasta patch path patient patrol pattern
pave paw pay peacock peanut pebble pecan pedal pelican pencil penguin penny pension people perch
perfect permit person petal photo phrase physics pickle picnic picture pigeon pilgrim pillow
pilot pinball pinch pinecone pink pioneer pipe pitcher pivot pixel pizza place plaid planet
plaster plate play plaza pledge plenty plow plug plum plunge plural plywood pocket podium poem
poet polar polish pollen polo poncho pond popcorn popular porridge portrait position postage
potato pottery poultry powder power praise pray predict prefer prepare present pretty prevent
pride prime prince prism private problem produce program project promise proof propel protect
public pudding puffin pulp pulse puma pump pupil puppet purchase purple purse push puzzle
pyramid python quail quality quantum quart queen query quest quiet quilt quiver quiz quota
rabbit raccoon race rack radar radiator raft ragtime rail rain raisin rally ramble ramp ranch
random range rank rapid rare rate rattle raven raw ray razor reach read rebound recall receive
recipe record recycle reduce redwood reef refer reflect refuse region regret regular reindeer
reject relax release relief remain remedy remote renew rent repair repeat reply report reptile
request rescue resist resort respect rest result retail retire retreat return reveal review
revolve reward rhino rhyme rhythm rib ribbon riddle ridge rigid ring rinse ripple risk rocket
rodeo romance rooster rope rosemary rotate round rubber ruby rug rugby runner runway rural rush
rustic sable sack saddle safari safe saga sage sail salad salmon salon salsa salt salute same
sample sand sapphire sardine satchel satin saturn sauce sauna sausage scale scan scarce scatter
scene science scissors scoop score scout scrap screen script scuba sea search season seat
seaweed second secret section secure seed seesaw segment select self semester senior series
serve sesame session settle seven sew shade shaft shake shale shampoo shape share shave sheet
shelf sheriff shield shine shipyard shirt shoe shoulder shovel show shrimp shrug shuffle shutter
sidewalk sign silence silicon silk silver similar sing sink sister six sketch ski skirt skunk
skyline slab slam slate sled sleep slender slice slipper slogan slow slumber smart smell smoke
smooth snack snail snap sneeze sniff snore snow soap soccer social soda sodium sofa soft solar
soldier sonnet sorrow sort source south space spade spare speak special speech spell spend
sphere spider spin spiral splash split sponge sport spot spray spring sprout spruce spy squad
squeak squirrel stable stadium staff stage stair stamp stand staple starfish state stay steak
steel stem stencil step stereo stew sting stitch stomach stone storm strange stream strike
stroll student stumble subject submit subtle subway success such sudden sugar suggest suitcase
summer sunday sunrise sunset super supply sure surgeon surprise survey sushi suspect sustain
swallow swamp swan swap swarm sweater sweet swift swim swing switch swivel sycamore syllable
symbol symptom syrup system table tackle taco tactic tadpole tail take talent talk tame tandem
tango tank tape target task taste tattoo tavern taxi tea teach teapot tease teddy teeth telegram
temper ten tenant tender tennis tent term terrace text thank theater theme theory thermal thick
thimble thin third thistle thorn thought thread thrill throat thunder thursday ticket tide tiger
tight timber timid tinsel tiny tiptoe tire tissue title toddler toffee together token tomato
tomorrow tonic topaz topcoat topic torch tornado tortoise total toward towel town trace trade
traffic trail transit travel tray treasure trek tremble trend triangle tribe trigger trim
trinket trip triumph trolley trombone tropic trot trouble trowel truffle trumpet trunk trust
truth tuba tube tuesday tug tugboat tulip tumble tundra tunnel turbine turkey turn turret turtle
tutor tuxedo twelve twenty twice twig twilight twin twist two typical ukulele ultra umbrella
umpire unfold unicorn uniform unique unit universe unlock until unusual upbeat update upright
upset urban urge usual utensil utility vacant vacuum vague valid valley valve vanilla vapor
various varnish vector vehicle velocity velvet vendor venture venus veranda verb verdict verify
version vertical veteran vibrate video village vineyard vintage violet virtue visible vista
vital vivid vocal volcano volume voucher vowel waddle wafer waffle wage wagon waist wait wake
walk wall walnut walrus waltz wander want wardrobe warm wash wasp watch water wave wax way
wealth wear weasel weather web wedding weekday welcome welfare when whisker wide widget wild
willow wind wing winner winter wisdom wise wishbone withdraw witness wizard wolf woman woodland
word work world worry worth wreath wrestle yacht yard yearbook yellow yoga yogurt yolk young
youth zebra zenith zephyr zero zesty zigzag zodiac zucchini
"""
WORDS: Final = tuple(_TEXT.split())
WORD_BITS: Final = 11
