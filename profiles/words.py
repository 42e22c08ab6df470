"""Words that are one token each: n of them are a prompt of n tokens, and no tokenizer is needed to write it.

The criterion: a plain, frequent English word of three to seven lower-case letters that is one token with a space in
front of it and without one, since a word may open a message. All of them meet it in four tokenizers that share
nothing: DeepSeek (byte-level BPE, 128k), Qwen 3 (BPE, 151k and 248k), Mistral Tekken (BPE, 131k) and Mistral's first
SentencePiece model (32k). Random sequences of 1 to 8,000 of them had exactly as many tokens as words in all four.

Another tokenizer may split some. So every run can check it: `ratios.check_slope` holds the engine's own count
against the words that were sent.
"""

from typing import Final

WORDS: Final[tuple[str, ...]] = tuple(
    """
    about above accept account active actual add address after again against age agent ago album all allow almost
    alone along already always amount and animal another answer any apply area arm around art article artist aside
    ask author average aware away back bad bag balance band bank bar base based bed before begin below best better
    between big birth bit blue board bone book border both bottom box brain branch bread break bring broken build
    built bus but buy call camp can car card care case catch cell center central chain chair change channel chapter
    charge check chief child choice choose circle city claim class clean clear club code collect color column come
    comfort comment common company compare complex conduct confirm connect contact content context control cool copy
    correct could count course court cover create credit cross custom cut cycle data date deal deep define degree
    design detail device direct display doctor does dog done door double down draw drive driver drop due each early
    earth effect either element else employ empty end energy engine ensure enter entry equal error escape even event
    ever every express extra eye face fact factor false family far fast father feature felt field figure file fill
    film final finally find fine first fish fit five fix flat flight floor flow fly focus follow food foot for force
    former forward found four frame free friend from front fruit full fully fun future gain gas general give glass
    global goal good got grade grand grass gray great green ground group growth guard guess guest guide had hair
    half hand handle hard hat have head health heat height held help here high hill him his history hit hole host
    hour house how ice idea image include index initial inner inside instead into iron issue item job join joint
    journal joy just keep key kid kind king know known lab lake land large last later law lay lead leader learn
    leave left legal less let letter level library life light like likely limit link lip list listen little live
    local lock long look lost lot low lower main major manage manager many map mark market married mass master may
    maybe meal mean measure media member memory mental message method middle mile mind mine minor miss mission model
    modern moment money more most mother mouth move movie much music must name nation natural near need never news
    next nice night nor normal not note nothing notice now number object off offer office often old once one online
    only onto open option orange other our output outside over own owner pack pair panel paper parent park part
    partner party pass past path patient pattern pay people per percent perform perhaps period person phone photo
    pick picture piece place plan plane plant plate play player please plus point policy popular port portion pose
    post pot power present press pretty price primary print private problem process product profit project proof
    pure push put quality quarter quick quiet radio rain raise range rank rate rather read reader ready real really
    reason record reduce refer region regular release remote remove replace reply report request require respect
    respond rest result return rich ride ring risk river road rock role roll room root round route row rule safe
    said same sample sat save say scale scene school scope score screen sea search season seat second secret section
    secure see send serve service session set shadow shape share sharp she sheet shift shop short should show sign
    signal similar simple since sing single sit site six size skill skin sky sleep slow small social solid some son
    soon sort sound source space special speed split spot spring square staff stage stand star start state step
    stick still stock stone stop store storm story street string strong student studio stuff style subject success
    such sun super support surface switch symbol system table take talk target task tax teacher team ten term test
    text than the their then there these they thing think third this those though three through throw thus time tiny
    title today too tool top topic touch tour town track trade train tree true try tube turn two type under union
    unit unknown unless until upon upper urban used user usual usually value very video view vision visit visual
    voice volume vote wait walk wall watch water wave way weak wear week weight well went western what wheel when
    where which while who whole why wide will win wind window winner wire wise with without woman wood word work
    worker working world worth would write writer written yard yellow yes yet you your zone
    """.split()
)
